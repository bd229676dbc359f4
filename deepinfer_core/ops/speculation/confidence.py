"""How likely a draft is to be accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide

MIN_TEMPERATURE = 1e-5
LARGEST_LOGIT = 60.0


@op("speculation.confidence", tolerance=Tolerance.one_rounding(), row_axis="T", weights=("embedding", "weight"))
def confidence(
    hidden: Annotated[Tensor, Shape("T", "H"), Dtypes("bf16", "f32", "f64")],
    previous: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    embedding: Annotated[Tensor, Shape("V", "I"), Dtypes("bf16", "f32")],
    weight: Annotated[Tensor, Shape(1, "_"), Dtypes("bf16", "f32")],
    *,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the logit and the estimated probability, both ``[T]`` f32, that each draft is accepted.

    ``logit = weight . [hidden; embedding[previous]]`` in wide precision and
    ``probability = sigmoid(clamp(logit / temperature, -60, 60))``. It is made before the draft is drawn and must not
    look at it: choosing how many drafts to verify would bias the output otherwise (spec model/09 section 4,
    dspark 1.6).

    Args:
        hidden: Output of the draft layers, before the final norm.
        previous: The token before the drafted one.
        embedding: The low-rank table of ``speculation.markov_logits``.
        weight: ``[1, H + I]``, the part for ``hidden`` first.
        temperature: Calibration of this draft position; below 1e-5 counts as 1e-5.

    Raises:
        ShapeError: ``weight`` does not have H + I columns.
    """
    num_hidden, rank = hidden.shape[-1], embedding.shape[-1]
    if weight.shape[-1] != num_hidden + rank:
        raise ShapeError(
            f"speculation.confidence: weight has {weight.shape[-1]} columns, H={num_hidden} and I={rank} need "
            f"{num_hidden + rank}; load the confidence head of this draft module"
        )
    features = wide(hidden)
    rows = embedding[previous.long()].to(features.dtype)
    logit = (torch.cat((features, rows), -1) * weight.to(features.dtype)).sum(-1).float()
    scaled = (logit / max(temperature, MIN_TEMPERATURE)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
    return logit, scaled.sigmoid()


def _random(draw: Draw) -> dict[str, Tensor]:
    dtype = "f32" if draw.dtype == "f64" else draw.dtype
    width = draw.sizes["H"] + draw.sizes["I"]
    return {
        "previous": draw.integers(0, draw.sizes["V"], "T"),
        "embedding": draw.normal("V", "I", dtype=dtype),
        "weight": draw.normal(1, width, dtype=dtype, scale=width**-0.5),
    }


@confidence.cases
def _cases() -> Iterator[Case]:
    yield Case("released", T=4, V=300, H=5120, I=256, make=_random, required=True, bench=True)
    yield Case("no_rows", T=0, V=20, H=64, I=16, make=_random, required=True)
    yield Case("many_rows", T=65, V=20, H=72, I=8, temperature=1.7, make=_random, required=True)
    yield Case("clamped", T=9, V=20, H=64, I=16, temperature=0.0, make=_random, required=True)
    yield Case("f32", T=3, V=20, H=64, I=16, dtype="f32", make=_random)
    yield Case("f64", T=3, V=20, H=64, I=16, dtype="f64", make=_random)
    yield ErrorCase("rows", T=2, V=8, H=8, I=4, make=_random, stretch=("previous", "T"), raises=ShapeError, match="T=3")
    yield ErrorCase(
        "long_ids",
        T=2,
        V=8,
        H=8,
        I=4,
        make=_random,
        spoil=lambda a: a.update(previous=a["previous"].long()),
        raises=DtypeError,
        match="i64",
    )
