"""Which rows of two traced tensors belong together, and what a row is called.

A trace holds every position; golden files of long prompts hold the last few, and the first and last compressed
entries (shared conventions: docs/trace.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_BEFORE = ("input/ids", "engram_ids")
_IN_LAYER = (
    "compressed_kv",
    "index_keys",
    "index_scores",
    "topk",
    "attn_out",
    "router_ids",
    "router_weights",
    "ffn_out",
    "streams",
    "pre_mix",
)
_AFTER = (
    "features",
    "final_hidden",
    "logits",
    "argmax",
    "draft_positions",
    "draft_anchor_tokens",
    "draft_hidden",
    "draft_tokens",
    "draft_logits",
    "draft_confidence_logits",
    "draft_confidence",
    "greedy",
)
_PER_ENTRY = ("compressed_kv", "index_keys")
_PER_POSITION = {*_BEFORE, *_IN_LAYER, "features", "final_hidden", "logits", "argmax"} - {*_PER_ENTRY}
_ALWAYS_WHOLE = {*_BEFORE, "argmax"}
_KEPT_ENTRIES = 16
"""Entries that a golden file of a long prompt keeps of each end."""


def kind_of(name: str) -> str:
    """The name without the layer."""
    return name.partition(".")[0]


def model_order(name: str) -> tuple[int, int, int, str]:
    """Sorts names of tensors as the model makes them; names that are not known come last."""
    kind, _, layer = name.partition(".")
    if kind in _BEFORE:
        return (0, 0, _BEFORE.index(kind), "")
    if kind in _IN_LAYER and layer.isdigit():
        return (1, int(layer), _IN_LAYER.index(kind), "")
    if kind in _AFTER:
        return (2, 0, _AFTER.index(kind), "")
    return (3, 0, 0, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one tensor that two traces have in common.

    Attributes:
        name: Of the tensor.
        left: Of the first trace.
        right: Of the second, the same shape.
        word: What a row is: a position, an entry, a draft, a token.
        numbers: Its number, for each row.
    """

    name: str
    left: Tensor
    right: Tensor
    word: str
    numbers: tuple[int, ...]

    def at(self, numbers: Sequence[int]) -> Rows | None:
        """The rows with these numbers, in that order; None unless all are there."""
        index = {number: row for row, number in enumerate(self.numbers)}
        if not set(numbers) <= set(index):
            return None
        rows = [index[number] for number in numbers]
        return replace(self, left=self.left[rows], right=self.right[rows], numbers=tuple(numbers))

    def place(self, where: Sequence[int]) -> str:
        """An element in words; a tensor without rows has places only."""
        if len(where) == 0 or not self.numbers:
            return f"index {', '.join(map(str, where))}"
        inner = f", index {', '.join(map(str, where[1:]))}" if len(where) > 1 else ""
        return f"{self.word} {self.numbers[where[0]]}{inner}"


def align(name: str, left: Tensor, right: Tensor, *, num_positions: int) -> Rows | None:
    """Pair the rows of a tensor.

    Args:
        name: Of the tensor; it decides what rows are.
        left: Of the first trace.
        right: Of the second; where one has fewer rows, it holds the last positions (or, of compressed entries,
            the first and the last ones; of greedy tokens the first).
        num_positions: Length of the prompt, 0 if unknown.

    Returns:
        None when the shapes do not fit together.
    """
    if left.ndim != right.ndim or left.shape[1:] != right.shape[1:]:
        return None
    kind = kind_of(name)
    if kind in ("router_ids", "router_weights") and left.ndim == 1:  # a prompt of one token has no axis of positions
        left, right = left.unsqueeze(0), right.unsqueeze(0)
    num_left, num_right = len(left), len(right)
    kept, longest = min(num_left, num_right), max(num_left, num_right)
    has_rows_of_its_own = kind in _PER_POSITION or kind in _PER_ENTRY or kind == "greedy"
    if kept != longest and (kind in _ALWAYS_WHOLE or not has_rows_of_its_own):
        return None
    if kind in _PER_POSITION:
        end = max(num_positions, longest)
        return Rows(
            name=name,
            left=left[num_left - kept :],
            right=right[num_right - kept :],
            word="position",
            numbers=tuple(range(end - kept, end)),
        )
    if kind in _PER_ENTRY:
        return _align_entries(name, left, right, kept, longest)
    if kind == "greedy":
        return Rows(name=name, left=left[:kept], right=right[:kept], word="token", numbers=tuple(range(kept)))
    word = "draft" if kind.startswith("draft") else "row"
    return Rows(name=name, left=left, right=right, word=word, numbers=tuple(range(kept)))


def _align_entries(name: str, left: Tensor, right: Tensor, kept: int, longest: int) -> Rows | None:
    numbers = list(range(longest))
    if kept != longest:
        if kept != 2 * _KEPT_ENTRIES:
            return None
        numbers = [*range(_KEPT_ENTRIES), *range(longest - _KEPT_ENTRIES, longest)]
        left, right = (t if len(t) == kept else t[torch.tensor(numbers)] for t in (left, right))
    return Rows(name=name, left=left, right=right, word="entry", numbers=tuple(numbers))
