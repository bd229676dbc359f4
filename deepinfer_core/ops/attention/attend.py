"""The core of sparse attention, shared by the two ways in which keys are found."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.wide import wide


def attend(
    query: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, *, scale: float, round_probabilities: bool
) -> Tensor:
    """Softmax attention of every row over its own keys, which are also its values (spec attention/01 section 7).

    Args:
        query: ``[T, N, D]``.
        keys: ``[T, n, D]``; contents of invalid keys do not matter.
        valid: ``[T, n]`` bool.
        sink: ``[N]``, an extra logit per head that takes probability and gives no value.
        scale: Factor of the logits.
        round_probabilities: Round ``exp(logit - maximum)`` to bf16 before it weighs the values; the
            denominator is summed from the unrounded numbers.

    Returns:
        ``[T, N, D]`` in wide precision; zeros for a row without a valid key.
    """
    q = wide(query)
    k = torch.where(valid.unsqueeze(-1), keys, torch.zeros((), dtype=keys.dtype, device=keys.device)).to(q.dtype)
    logits = (q @ k.transpose(1, 2)) * scale
    logits = torch.where(valid.unsqueeze(1), logits, -torch.inf)
    maximum = logits.amax(-1, keepdim=True)
    maximum = torch.where(torch.isfinite(maximum), maximum, 0.0)
    weight = torch.exp(logits - maximum)
    total = weight.sum(-1, keepdim=True) + torch.exp(sink.to(q.dtype)[:, None] - maximum)
    if round_probabilities:
        weight = weight.to(torch.bfloat16).to(q.dtype)
    return torch.where(valid.any(-1)[:, None, None], weight @ k / total, 0.0)
