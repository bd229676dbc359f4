"""Make tokens that have occurred less (or more) likely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance

_TOLERANCE = Tolerance.elementwise("a backend may fuse the multiply and the add", f32=(2**-21, 1e-6))


@op("sampling.apply_penalties", tolerance=_TOLERANCE, row_axis="T")
def apply_penalties(
    logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    output_counts: Annotated[Tensor, Shape("T", "V"), Dtypes("i32")],
    in_prompt: Annotated[Tensor, Shape("T", "V"), Dtypes("bool")],
    repetition: Annotated[Tensor, Shape("T"), Dtypes("f32")],
    presence: Annotated[Tensor, Shape("T"), Dtypes("f32")],
    frequency: Annotated[Tensor, Shape("T"), Dtypes("f32")],
) -> Tensor:
    """Return the logits with the three penalties of vLLM applied, in its order.

    Repetition first: a token of the prompt or the output has a positive logit divided and any other logit
    multiplied by ``repetition``. Then ``frequency`` times its count in the output is subtracted, then
    ``presence`` if it occurs in the output at all. 1, 0 and 0 leave a row as it is; -inf stays -inf.

    Args:
        logits: Scores before temperature.
        output_counts: How often each token occurs in what was generated.
        in_prompt: Whether each token occurs in the prompt.
        repetition: Positive factor of each row.
        presence: Amount of each row.
        frequency: Amount of each row.
    """
    in_output = output_counts > 0
    factor = repetition.unsqueeze(-1)
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    penalised = torch.where(in_prompt | in_output, repeated, logits)
    penalised = penalised - frequency.unsqueeze(-1) * output_counts
    return penalised - presence.unsqueeze(-1) * in_output


def _random_history(draw: Draw) -> dict[str, Tensor]:
    """About half of the tokens do not occur in the output."""
    return {
        "output_counts": (draw.integers(0, 6, "T", "V") - 3).clamp(min=0),
        "in_prompt": draw.integers(0, 2, "T", "V", dtype="bool"),
        "repetition": draw.uniform("T", low=0.5, high=2.0),
        "presence": draw.uniform("T", low=-2.0, high=2.0),
        "frequency": draw.uniform("T", low=-2.0, high=2.0),
    }


def _neutral(draw: Draw) -> dict[str, Tensor]:
    ones, zeros = torch.ones(draw.sizes["T"]), torch.zeros(draw.sizes["T"])
    return {**_random_history(draw), "repetition": ones, "presence": zeros, "frequency": zeros}


def _forbidden(draw: Draw) -> dict[str, Tensor]:
    logits = draw.normal("T", "V", dtype="f32")
    return {**_random_history(draw), "logits": logits.masked_fill(logits > 0, -torch.inf)}


@apply_penalties.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, make=_random_history, required=True, bench=True)
    yield Case("no_rows", T=0, V=16, make=_random_history, required=True)
    yield Case("small", T=7, V=37, make=_random_history, required=True)
    yield Case("neutral", T=3, V=37, make=_neutral, required=True)
    yield Case("forbidden_tokens", T=3, V=37, make=_forbidden, required=True)
    yield ErrorCase(
        "counts", T=2, V=8, make=_random_history, stretch=("output_counts", "V"), raises=ShapeError, match="V=9"
    )
    yield ErrorCase(
        "prompt_counts",
        T=2,
        V=8,
        make=_random_history,
        spoil=lambda a: a.update(in_prompt=a["in_prompt"].int()),
        raises=DtypeError,
        match="i32",
    )
