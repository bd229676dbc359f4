"""The n-gram memory on the CPU (spec model/06)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.limits import Site
from deepinfer_core.reference.chunks import map_rows
from deepinfer_core.reference.codes import decode
from deepinfer_core.reference.norm import inverse_rms
from deepinfer_core.reference.rounding import constant, integer, rounded_rows
from deepinfer_core.tensor import QuantTensor

_SMALLEST_AGREEMENT = 1e-6


def run_lookup(rows: Tensor, table: QuantTensor) -> QuantTensor:
    """``engram.lookup``: the values of the rows; a missing row reads the first one and is blanked."""
    flat = rows.flatten()
    index, kept = flat.clamp_min(0), flat.bitwise_right_shift(integer(31)).bitwise_not_().to(torch.uint8).unsqueeze(-1)
    codes = table.data.view(torch.uint8).index_select(0, index).bitwise_and_(kept)
    values = decode(codes, table.scale.index_select(0, index), table.spec)
    return rounded_rows(values.view(len(rows), rows.shape[1] * table.data.shape[1]), table.format)


def pack_gate(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Only the product of the two norm weights is ever needed."""
    del site
    weight = weights["query_weight"].float() * weights["key_weight"].float()
    return {"query_weight": weight, "key_weight": weight}


def run_gate(streams: Tensor, key_value: Tensor, query_weight: Tensor, key_weight: Tensor, *, eps: float) -> Tensor:
    """``engram.gate`` with weights from :func:`pack_gate`."""
    del key_weight
    num_streams, hidden = streams.shape[1:]

    def work(streams: Tensor, key_value: Tensor) -> Tensor:
        x, memory = streams.float(), key_value.float().unflatten(1, (num_streams + 1, hidden))
        keys, value = memory[:, :num_streams], memory[:, num_streams:]
        agreement = (x * query_weight).mul_(keys).sum(-1, keepdim=True)
        agreement.mul_(inverse_rms(x, eps)).mul_(inverse_rms(keys, eps)).mul_(constant(hidden**-0.5))
        return torch.addcmul(x, _amount(agreement), value)

    return map_rows(work, (streams, key_value), 4 * num_streams * hidden, streams.dtype)


def _amount(agreement: Tensor) -> Tensor:
    """Sigmoid of the signed square root, in float64 as in the reference."""
    exact = agreement.double()
    return torch.copysign(exact.abs().clamp_min_(_SMALLEST_AGREEMENT).sqrt_(), exact).sigmoid_().float()
