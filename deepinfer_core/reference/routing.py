"""Which experts a token goes to, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.reference.products import product
from deepinfer_core.reference.rounding import cast, constant


def run_route(
    x: Tensor,
    bias: Tensor,
    router: Tensor,
    *,
    experts_per_token: int,
    scaling: float,
    logits_dtype: str = "f32",
) -> tuple[Tensor, Tensor]:
    """``moe.route`` with a packed router."""
    logits = cast(product(cast(x, router.dtype), router), TORCH_DTYPES[logits_dtype])
    return run_select_experts(logits, bias, experts_per_token=experts_per_token, scaling=scaling)


def run_select_experts(
    logits: Tensor, bias: Tensor, *, experts_per_token: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """``moe.select_experts``."""
    score = softplus(logits.double()).sqrt_().float()  # float32 bits of vector and scalar code differ
    order = torch.sort(score + bias, dim=-1, descending=True, stable=True).indices[:, :experts_per_token]
    chosen = score.gather(1, order)
    total = chosen.sum(-1, keepdim=True).add_(constant(1e-20))
    return order.int(), chosen.div_(total).mul_(constant(scaling))
