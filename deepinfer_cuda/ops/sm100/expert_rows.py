"""Where the rows of each expert lie in the operands of a grouped product, found without a look at the ids.

Sizes depend on the number of rows, slots and experts only; which rows of an operand are used is data on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Rows of a grouped product's operands.

    Attributes:
        num_rows: Rows of the operands, most of them unused.
        capacity: Rows of each expert in the masked form; 0 in the contiguous form.
        layout: ``[experts]`` int32. Masked form: rows in use of each expert. Contiguous form: one past the last row of
            each expert, whose first row is the next multiple of the alignment after the expert before.
        rows: ``[T * K]`` int64: the row of each pair (row and slot of the step); ``num_rows`` for an empty slot.
        expected_rows: Rows of an expert if all were hit alike, at least 1.
    """

    num_rows: int
    capacity: int
    layout: Tensor
    rows: Tensor
    expected_rows: int

    def spread(self, values: Tensor) -> Tensor:
        """Rows of the pairs ``[T * K, n]`` at their places ``[num_rows, n]``; the other rows are left as they were."""
        placed = torch.empty((self.num_rows + 1, values.shape[1]), dtype=values.dtype, device=values.device)
        placed[self.rows] = values  # empty slots share the row behind the last
        return placed[:-1]

    def collect(self, placed: Tensor) -> Tensor:
        """Rows of the pairs ``[T * K, n]``; anything for an empty slot."""
        return placed[self.rows.clamp_max(self.num_rows - 1)]


def place_rows(ids: Tensor, num_experts: int, alignment: int) -> Placement:
    """Sort pairs by expert and lay them out in the form that needs fewer rows.

    Masked: room for all rows at every expert. Contiguous: experts one after the other, each beginning at a multiple of
    the alignment.

    Args:
        ids: ``[T, K]`` int32, -1 for an empty slot; the experts of a row are distinct.
        num_experts: Experts.
        alignment: Of the contiguous form.
    """
    num_pairs = ids.numel()
    most_rows = num_pairs + min(num_experts, num_pairs) * (alignment - 1)
    contiguous_rows = most_rows + -most_rows % alignment
    masked_rows = num_experts * len(ids)
    counts, order_in_expert, expert = _sorted(ids, num_experts)
    is_empty = expert == num_experts
    if masked_rows <= contiguous_rows:
        num_rows, capacity, layout = masked_rows, len(ids), counts
        begins = torch.arange(0, (num_experts + 1) * capacity, capacity, device=ids.device)
    else:
        num_rows, capacity = contiguous_rows, 0
        aligned = (counts + (alignment - 1)) // alignment * alignment
        begins = aligned.cumsum(0) - aligned
        layout = begins + counts
        begins = torch.cat((begins, begins[:1]))
    return Placement(
        num_rows=num_rows,
        capacity=capacity,
        layout=layout.to(torch.int32),
        rows=torch.where(is_empty, num_rows, begins[expert] + order_in_expert),
        expected_rows=max(1, -(-num_pairs // num_experts)),
    )


def _sorted(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of each expert ``[experts]``; of each pair its place among them and its expert (int64).

    An empty slot counts as one of an expert behind the last.
    """
    chosen = ids.flatten().long()
    expert = torch.where(chosen < 0, num_experts, chosen)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, expert, torch.ones_like(expert))
    order = expert.argsort(stable=True)
    place = torch.empty_like(expert)
    place[order] = torch.arange(len(expert), device=ids.device)
    first = counts.cumsum(0) - counts
    return counts[:-1], place - first[expert], expert
