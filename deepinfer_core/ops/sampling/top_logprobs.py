"""Log-probabilities to report with a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import ContractError, DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.sampling.fixed_point import log_softmax
from deepinfer_core.ops.tolerance import Tolerance

_TOLERANCE = Tolerance.elementwise("exponential and logarithm differ in the last bits", f32=(1e-5, 1e-5))


@op("sampling.top_logprobs", tolerance=_TOLERANCE, row_axis="T")
def top_logprobs(
    logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    ids: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    *,
    n: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the log-probability and rank of the chosen token, and the ``n`` best tokens, of each row.

    Best first, the lower id first among equal logits; a rank is a place in that order, from 1. Values are those of
    the logits given (the model's own, before temperature and filters), as vLLM reports them.

    Args:
        logits: Scores as the model gave them.
        ids: Chosen tokens; a row with -1 gives the values of token 0.
        n: How many best tokens; 0 to V.

    Returns:
        ``logprobs [T]`` f32, ``ranks [T]`` i32, ``best_logprobs [T, n]`` f32, ``best_ids [T, n]`` i32.

    Raises:
        ContractError: ``n`` is larger than the vocabulary.
    """
    vocab_size = logits.shape[-1]
    if not 0 <= n <= vocab_size:
        raise ContractError(f"sampling.top_logprobs: n={n} must be from 0 to V={vocab_size}; bind it with a smaller n")
    every = log_softmax(logits).float()
    chosen = ids.clamp(min=0).long().unsqueeze(-1)
    best = logits.sort(dim=-1, descending=True, stable=True).indices[:, :n]
    return every.gather(-1, chosen).squeeze(-1), _ranks(logits, chosen), every.gather(-1, best), best.int()


def _ranks(logits: Tensor, chosen: Tensor) -> Tensor:
    """1 + the number of tokens that come before the chosen one."""
    score = logits.gather(-1, chosen)
    columns = torch.arange(logits.shape[-1], device=logits.device)
    before = (logits > score) | ((logits == score) & (columns < chosen))
    return (before.sum(-1) + 1).int()


def _random(draw: Draw) -> dict[str, Tensor]:
    return {"ids": draw.integers(0, draw.sizes["V"], "T")}


def _ties(draw: Draw) -> dict[str, Tensor]:
    return {**_random(draw), "logits": draw.integers(0, 3, "T", "V").float()}


def _nothing_chosen(draw: Draw) -> dict[str, Tensor]:
    return {"ids": torch.full((draw.sizes["T"],), -1, dtype=torch.int32)}


@top_logprobs.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, n=20, make=_random, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, n=5, make=_random, required=True)
    yield Case("chosen_only", T=5, V=67, n=0, make=_random, required=True)
    yield Case("whole_vocabulary", T=3, V=19, n=19, make=_random)
    yield Case("ties", T=16, V=40, n=12, make=_ties, required=True)
    yield Case("nothing_chosen", T=2, V=19, n=3, make=_nothing_chosen)
    yield ErrorCase("ids", T=2, V=8, n=2, make=_random, stretch=("ids", "T"), raises=ShapeError, match="T=3")
    yield ErrorCase(
        "long_ids",
        T=2,
        V=8,
        n=2,
        make=_random,
        spoil=lambda a: a.update(ids=a["ids"].long()),
        raises=DtypeError,
        match="i64",
    )
