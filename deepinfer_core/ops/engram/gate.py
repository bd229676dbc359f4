"""Add the memory's value to every residual stream, as far as the stream asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance
from deepinfer_core.ops.wide import wide

_SMALLEST_AGREEMENT = 1e-6


@op("engram.gate", tolerance=Tolerance.one_rounding(), row_axis="T", weights=("query_weight", "key_weight"))
def gate(
    streams: Annotated[Tensor, Shape("T", "C", "H"), Dtypes("bf16", "f32", "f64")],
    key_value: Annotated[Tensor, Shape("T", "_"), Dtypes("bf16", "f32", "f64")],
    query_weight: Annotated[Tensor, Shape("C", "H"), Dtypes("bf16", "f32")],
    key_weight: Annotated[Tensor, Shape("C", "H"), Dtypes("bf16", "f32")],
    *,
    eps: float,
) -> Tensor:
    """Gate the projected memory into the streams; returns the new streams ``[T, C, H]`` in their own dtype.

    The gate of a stream is the sigmoid of the signed square root of the agreement between the normalised stream and its
    normalised key (spec model/06 section 5). An agreement below 1e-6 counts as 1e-6 with its sign, so that
    of zero gates with ``sigmoid(1e-3)``. Wide arithmetic, one rounding at the end. A token without rows has a
    zero value and so keeps its streams.

    Args:
        streams: Residual streams before the layer.
        key_value: ``[T, (C + 1) * H]``: one key per stream, then the value that the streams share.
        query_weight: Norm weight of each stream.
        key_weight: Norm weight of each key.
        eps: Added to the mean squares; a zero key is allowed.
    """
    num_streams, hidden = streams.shape[1:]
    x = wide(streams)
    memory = key_value.to(x.dtype).unflatten(1, (num_streams + 1, hidden))
    keys, value = memory[:, :num_streams], memory[:, num_streams:]
    weight = query_weight.to(x.dtype) * key_weight.to(x.dtype)
    agreement = (x * weight * keys).sum(-1, keepdim=True) * _inverse_rms(x, eps) * _inverse_rms(keys, eps)
    amount = _amount(agreement * hidden**-0.5)
    return (x + amount * value).to(streams.dtype)


def _amount(agreement: Tensor) -> Tensor:
    """In double: bits of a float32 sigmoid differ between vector and scalar code, so with the number of rows."""
    size = agreement.double().abs().clamp(min=_SMALLEST_AGREEMENT).sqrt()
    return torch.copysign(size, agreement.double()).sigmoid().to(agreement.dtype)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def _memory(draw: Draw) -> dict[str, Any]:
    return {"key_value": draw.normal("T", (draw.sizes["C"] + 1) * draw.sizes["H"])}


def _opposite_keys(draw: Draw) -> dict[str, Any]:
    """Keys that point against the streams: strongly negative agreement."""
    streams = draw.normal("T", "C", "H")
    value = draw.normal("T", 1, "H")
    ones = torch.ones(draw.shape("CH"), dtype=torch.bfloat16)
    return {
        "streams": streams,
        "key_value": torch.cat((-streams, value), dim=1).flatten(1),
        "query_weight": ones,
        "key_weight": ones.clone(),
    }


def _no_agreement(draw: Draw) -> dict[str, Any]:
    """Streams and keys that share no channel: the agreement is exactly zero and positive."""
    streams, memory = draw.normal("T", "C", "H"), draw.normal("T", draw.sizes["C"] + 1, "H")
    half = draw.sizes["H"] // 2
    streams[..., :half] = 0
    memory[:, :-1, half:] = 0
    return {"streams": streams, "key_value": memory.flatten(1)}


def _no_rows_found(draw: Draw) -> dict[str, Any]:
    """Tokens whose lookup gave zeros."""
    return {"key_value": draw.normal("T", (draw.sizes["C"] + 1) * draw.sizes["H"], scale=0.0)}


@gate.cases
def _cases() -> Iterator[Case]:
    yield Case("released_shape", T=3, C=4, H=5120, eps=1e-20, make=_memory, required=True, bench=True)
    yield Case("many_rows", T=33, C=4, H=256, eps=1e-6, make=_memory, required=True)
    yield Case("no_rows", T=0, C=4, H=256, eps=1e-20, make=_memory, required=True)
    yield Case("f32", T=5, C=4, H=256, eps=1e-20, dtype="f32", make=_memory)
    yield Case("f64", T=5, C=4, H=128, eps=1e-20, dtype="f64", make=_memory)
    yield Case("two_streams", T=5, C=2, H=96, eps=1e-6, make=_memory)
    yield Case("opposite_keys", T=4, C=4, H=128, eps=1e-20, make=_opposite_keys, required=True)
    yield Case("no_agreement", T=4, C=4, H=128, eps=1e-20, dtype="f32", make=_no_agreement)
    yield Case("zero_memory", T=4, C=4, H=128, eps=1e-20, make=_no_rows_found, required=True)
    yield ErrorCase(
        "stream_missing", T=2, C=4, H=32, eps=1e-6, make=_memory,
        stretch=("key_weight", "C"), raises=ShapeError, match="key_weight has C=5",
    )  # fmt: skip
    yield ErrorCase(
        "integers", T=2, C=4, H=32, eps=1e-6, make=_memory,
        spoil=lambda a: a.update(key_value=a["key_value"].int()), raises=DtypeError, match="i32",
    )  # fmt: skip
