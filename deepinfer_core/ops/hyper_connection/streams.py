"""Residual streams around a sub-layer: copy in, collapse, update (spec model/04 section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide

_STREAMS = ("bf16", "f32", "f64")


@op("hyper_connection.expand", tolerance=Tolerance.exact(), row_axis="T")
def expand(x: Annotated[Tensor, Shape("T", "H"), Dtypes(*_STREAMS)], *, num_streams: int) -> tuple[Tensor, Tensor]:
    """Start the streams: ``num_streams`` copies of each row, and the one-hot mix on stream 0.

    Returns:
        Streams ``[T, C, H]`` and the first mix ``[T, C]`` in wide precision.
    """
    streams = x.unsqueeze(1).expand(-1, num_streams, -1).contiguous()
    mix = torch.zeros(x.shape[0], num_streams, dtype=wide(x).dtype, device=x.device)
    mix[:, 0] = 1.0
    return streams, mix


@op("hyper_connection.collapse", tolerance=Tolerance.one_rounding(), row_axis="T")
def collapse(
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes(*_STREAMS)],
    mix: Annotated[Tensor, Shape("T", "C"), Dtypes("f32", "f64")],
) -> Tensor:
    """The input of a sub-layer: streams weighed by ``mix``, summed in wide precision, rounded once."""
    y = wide(streams)
    return (y * mix.unsqueeze(-1).to(y.dtype)).sum(1).to(streams.dtype)


@op("hyper_connection.update", tolerance=Tolerance.one_rounding(), row_axis="T")
def update(
    output: Annotated[Tensor, Shape("T", "H"), Dtypes(*_STREAMS)],
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes(*_STREAMS)],
    post: Annotated[Tensor, Shape("T", "C"), Dtypes("f32", "f64")],
    combination: Annotated[Tensor, Shape("T", "C", "C"), Dtypes("f32", "f64")],
) -> Tensor:
    """Put a sub-layer's output back: ``post[j] * output + sum_i combination[i, j] * streams[i]``.

    ``combination`` is indexed ``[input stream, output stream]``: the sum runs over its first index.
    """
    old = wide(streams)
    mixed = torch.einsum("tij,tih->tjh", combination.to(old.dtype), old)
    return (post.unsqueeze(-1).to(old.dtype) * wide(output).unsqueeze(1) + mixed).to(streams.dtype)


@expand.cases
def _expand_cases() -> Iterator[Case]:
    yield Case("four", T=3, H=64, num_streams=4, required=True)
    yield Case("no_rows", T=0, H=64, num_streams=4, required=True)
    yield ErrorCase(
        "rank", T=3, H=64, num_streams=4, make=lambda d: {"x": d.normal("T", 2, "H")}, raises=ShapeError, match="axes"
    )


@collapse.cases
def _collapse_cases() -> Iterator[Case]:
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, C=4, H=256, required=True)
    yield Case("two_streams_f32", T=5, C=2, H=64, dtype="f32")
    yield ErrorCase("streams", T=2, C=4, H=8, stretch=("mix", "C"), raises=ShapeError, match="mix has C=5")


def _asymmetric(draw: Draw) -> dict[str, Any]:
    """A combination whose transpose gives a visibly different result."""
    return {"combination": draw.uniform("T", "C", "C"), "post": draw.uniform("T", "C", high=2.0)}


@update.cases
def _update_cases() -> Iterator[Case]:
    for rows in (0, 1, 33):
        yield Case(f"{rows}_rows", T=rows, C=4, H=256, make=_asymmetric, required=True)
    yield Case("two_streams_f32", T=5, C=2, H=64, dtype="f32", make=_asymmetric)
    yield ErrorCase("hidden", T=2, C=4, H=8, stretch=("output", "H"), raises=ShapeError, match="streams has H=8")
