"""Which experts a token goes to, and pairs of tokens that become one entry, in compiled code."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.reference.compiled import array, empty, kernel, narrowed, over_rows, tensor
from deepinfer_core.reference.compiled_products import one_map
from deepinfer_core.reference.rounding import cast
from deepinfer_core.tensor import Packed

if TYPE_CHECKING:
    from torch import Tensor


@kernel
def _softplus(value: Any) -> Any:
    return value if value > 20.0 else math.log1p(math.exp(value))


@kernel
def _select_rows(logits: Any, bias: Any, scaling: Any, ids: Any, weights: Any, first: Any, last: Any) -> None:
    count = logits.shape[1]
    scores, free = np.empty(count, np.float32), np.empty(count, np.bool_)
    for index in range(first, last):
        for expert in range(count):
            scores[expert] = np.float32(math.sqrt(_softplus(np.float64(logits[index, expert]))))
            free[expert] = True
        total = np.float32(0.0)
        for slot in range(ids.shape[1]):
            best = -1
            for expert in range(count):
                if free[expert] and (best < 0 or _is_before(scores[expert] + bias[expert], scores[best] + bias[best])):
                    best = expert
            free[best] = False
            ids[index, slot], weights[index, slot] = best, scores[best]
            total += scores[best]
        for slot in range(ids.shape[1]):
            weights[index, slot] = weights[index, slot] / (total + np.float32(1e-20)) * scaling


@kernel
def _is_before(a: Any, b: Any) -> Any:
    """Larger numbers first, NaN before all."""
    return a > b or (math.isnan(a) and not math.isnan(b))


@kernel
def _pool_rows(
    gate: Any,
    value: Any,
    positions: Any,
    row_sequence: Any,
    state_slots: Any,
    ring: Any,
    result: Any,
    first: Any,
    last: Any,
) -> None:
    """Entries of the rows; nothing is written to the ring."""
    length, width = ring.shape[1], gate.shape[1]
    for index in range(first, last):
        sequence = row_sequence[index]
        if sequence < 0 or positions[index] % 2 == 0:
            result[index] = narrowed(np.float32(0.0), result)
        elif index > 0 and row_sequence[index - 1] == sequence:
            for column in range(width):
                before, weight = value[index - 1, column], gate[index, column] - gate[index - 1, column]
                result[index, column] = narrowed(_mean(before, value[index, column], weight), result)
        else:
            slot, place = state_slots[sequence], (positions[index] - 1) % length
            for column in range(width):
                before, weight = ring[slot, place, 1, column], gate[index, column] - ring[slot, place, 0, column]
                result[index, column] = narrowed(_mean(before, value[index, column], weight), result)


@kernel
def _mean(before: Any, value: Any, weight: Any) -> Any:
    share = np.float32(1.0) / (np.float32(1.0) + np.exp(-weight))
    return before + share * (value - before)


@kernel
def _keep_rows(
    gate: Any, value: Any, positions: Any, row_sequence: Any, state_slots: Any, lengths: Any, ring: Any
) -> None:
    """Put the last rows of each sequence into its ring."""
    length = ring.shape[1]
    for index in range(len(positions)):
        sequence = row_sequence[index]
        if sequence >= 0 and positions[index] >= lengths[sequence] - length:
            slot, place = state_slots[sequence], positions[index] % length
            ring[slot, place, 0] = gate[index]
            ring[slot, place, 1] = value[index]


def run_select_experts(
    logits: Tensor, bias: Tensor, *, experts_per_token: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """``moe.select_experts``."""
    rows = array(logits.float())
    ids = np.empty((len(rows), experts_per_token), np.int32)
    weights = np.empty((len(rows), experts_per_token), np.float32)
    work = rows.shape[1] * (32 + 2 * experts_per_token)
    over_rows(_select_rows, len(rows), work, rows, array(bias.float()), np.float32(scaling), ids, weights)
    return tensor(ids), tensor(weights)


def run_route(
    x: Tensor,
    bias: Tensor,
    router: Packed,
    *,
    experts_per_token: int,
    scaling: float,
    logits_dtype: str = "f32",
) -> tuple[Tensor, Tensor]:
    """``moe.route`` with a packed router."""
    logits = router.payload(x.float(), one_map(x.shape[0]))
    if logits_dtype != "f32":
        logits = cast(logits, TORCH_DTYPES[logits_dtype])
    return run_select_experts(logits, bias, experts_per_token=experts_per_token, scaling=scaling)


def run_compress_pairs(
    gate: Tensor,
    value: Tensor,
    positions: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    context_lengths: Tensor,
    ring: Tensor,
    *,
    out: str,
) -> Tensor:
    """``kv_cache.compress_pairs``; the softmax of two gates is the sigmoid of their difference."""
    rows = (array(gate), array(value), array(positions), array(row_sequence), array(state_slots))
    result, memory = empty(rows[0].shape, TORCH_DTYPES[out]), ring.numpy()
    over_rows(_pool_rows, len(result), 16 * result.shape[1], *rows, memory, result)
    _keep_rows(*rows, array(context_lengths), memory)
    return tensor(result)
