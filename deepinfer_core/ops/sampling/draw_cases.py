"""Inputs and wrong calls that all ways to draw a token are tried with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Draw, ErrorCase
from deepinfer_core.ops.sampling.random import DRAW


def random_rows(source: Draw) -> dict[str, Tensor]:
    """Distributions of moderate entropy, any seeds and positions."""
    return {
        "logprobs": source.normal("T", "V", dtype="f32", scale=3.0).log_softmax(-1),
        "seeds": source.integers(-(2**63), 2**63 - 1, "T", dtype="i64"),
        "positions": source.integers(0, 2**20, "T"),
    }


def one_hot_rows(source: Draw) -> dict[str, Tensor]:
    """Rows with one possible token."""
    logprobs = torch.full((source.sizes["T"], source.sizes["V"]), -torch.inf)
    logprobs.scatter_(1, source.integers(0, source.sizes["V"], "T", 1, dtype="i64"), 0.0)
    return {**random_rows(source), "logprobs": logprobs}


def rows_without_weight(source: Draw) -> dict[str, Tensor]:
    """Three rows or more: nothing is possible, nothing is a number, and numbers end."""
    made = random_rows(source)
    made["logprobs"][0] = -torch.inf
    made["logprobs"][1] = torch.nan
    made["logprobs"][2, 5:] = torch.nan
    return made


def wrong_calls() -> Iterator[ErrorCase]:
    """Shapes and types that are refused."""
    yield ErrorCase(
        "seeds", T=2, V=8, purpose=DRAW, make=random_rows, stretch=("seeds", "T"), raises=ShapeError, match="T=3"
    )
    yield ErrorCase(
        "int_seeds",
        T=2,
        V=8,
        purpose=DRAW,
        make=random_rows,
        spoil=lambda a: a.update(seeds=a["seeds"].int()),
        raises=DtypeError,
        match="i32",
    )
