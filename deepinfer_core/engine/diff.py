"""Find the first tensor in which two traces part (docs/trace.md).

Tensors are compared in the order in which the model makes them. Numbers agree when the largest difference is small
beside the largest entry of the tensor. Integers must be equal, with one exception: where a choice was made between
scores that both traces recorded (selected entries, argmax, drafted tokens), another choice is as good when the
scores of neither trace tell the two apart. What follows a differently drafted token is not compared, because each
drafted token changes the logits of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from deepinfer_core.engine.trace_rows import Rows, align, kind_of, model_order

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCES = {"f64": 1e-9, "f32": 1e-5, "bf16": 0.05, "bf16_a8": 0.05, "released": 0.05}
"""Arithmetic -> largest difference that is noise, in units of the tensor's largest entry. Two implementations of the
16-bit variants part by 0.01 to 0.05 in logits even when both are right."""

_ONE_CODE = 0.34
"""The largest step between two FP4 codes, 4 and 6, in units of 6. In 16 bits noise decides many roundings."""

Bound = Callable[[str], float]
"""Name of a tensor -> its tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where a tensor differs by more than its tolerance.

    Attributes:
        place: In words, e.g. ``position 393, index 5``.
        left: What the first trace has there.
        right: What the second has.
    """

    place: str
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How one tensor compares.

    Attributes:
        name: Of the tensor.
        error: Numbers: the largest difference in units of the largest entry. Integers: the number of choices that
            differ and are no ties.
        allowed: What ``error`` may be at most.
        num_ties: Choices that differ between scores that do not tell them apart.
        first: The first place out of bounds; None when the tensors agree.
        is_choice: True for integers.
    """

    name: str
    error: float
    allowed: float
    num_ties: int = 0
    is_choice: bool = False
    first: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDifference:
    """The result of comparing two traces.

    Attributes:
        comparisons: One for each tensor that both have, in model order.
        only_left: Names that only the first has.
        only_right: Names that only the second has.
    """

    comparisons: tuple[Comparison, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]

    @property
    def different(self) -> tuple[Comparison, ...]:
        """What is out of bounds, in model order."""
        return tuple(c for c in self.comparisons if c.first is not None)


def bounds_of(*numerics: str) -> Bound:
    """Tolerances of the coarsest of these arithmetics that is known; those of ``f32`` without any."""
    noise = max((TOLERANCES[name] for name in numerics if name in TOLERANCES), default=TOLERANCES["f32"])
    rounded = max(noise, _ONE_CODE) if noise >= TOLERANCES["bf16"] else noise
    return lambda name: rounded if kind_of(name) in ("compressed_kv", "index_keys") else noise


def compare_traces(left: Mapping[str, Tensor], right: Mapping[str, Tensor], bound: Bound) -> TraceDifference:
    """Compare every tensor that both traces have.

    Args:
        left: One trace by name; every position, or the last ones as golden files keep them.
        right: The other.
        bound: Tolerance of each tensor.
    """
    pair = _Pair(left, right)
    names = sorted(left.keys() & right.keys(), key=model_order)
    return TraceDifference(
        comparisons=tuple(_compare(pair, name, bound(name)) for name in names),
        only_left=tuple(sorted(left.keys() - right.keys(), key=model_order)),
        only_right=tuple(sorted(right.keys() - left.keys(), key=model_order)),
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two traces, looked at side by side."""

    left: Mapping[str, Tensor]
    right: Mapping[str, Tensor]

    def rows(self, name: str) -> Rows | None:
        """The rows of a tensor that both have; None where one lacks it or the shapes do not fit together."""
        if name not in self.left or name not in self.right:
            return None
        ids = self.left.get("input/ids", self.right.get("input/ids"))
        return align(name, self.left[name], self.right[name], num_positions=0 if ids is None else len(ids))


def _compare(pair: _Pair, name: str, allowed: float) -> Comparison:
    rows = pair.rows(name)
    if rows is None:
        left, right = (f"shape {tuple(side[name].shape)}" for side in (pair.left, pair.right))
        first = Difference(place="every place", left=left, right=right)
        return Comparison(name=name, error=float("inf"), allowed=allowed, first=first)
    if rows.left.is_floating_point():
        return _compare_numbers(_comparable(pair, rows), allowed)
    return _compare_choices(rows, _tied(pair, rows, allowed))


def _comparable(pair: _Pair, rows: Rows) -> Rows:
    """Router weights in the order of expert ids; draft rows that follow different tokens without a difference."""
    kind, _, layer = rows.name.partition(".")
    if kind == "router_weights":
        ids = pair.rows(f"router_ids.{layer}")
        if ids is not None and ids.left.shape == rows.left.shape:
            left, right = rows.left.gather(-1, ids.left.argsort(-1)), rows.right.gather(-1, ids.right.argsort(-1))
            return replace(rows, left=left, right=right)
    if kind in ("draft_logits", "draft_confidence_logits", "draft_confidence"):
        tokens = pair.rows("draft_tokens")
        if tokens is not None and tokens.left.shape == rows.left.shape[:2]:
            followed = _same_history(tokens).reshape(tokens.left.shape + (1,) * (rows.left.ndim - 2))
            return replace(rows, right=torch.where(followed, rows.right, rows.left))
    return rows


def _tied(pair: _Pair, rows: Rows, allowed: float) -> Tensor | None:
    """Choices that scores of both traces leave open; None where there are no scores of the kind."""
    kind, _, layer = rows.name.partition(".")
    if kind == "topk":
        return _tied_selections(rows, pair.rows(f"index_scores.{layer}"), allowed)
    if kind == "argmax":
        return _tied_tokens(rows, pair.rows("logits"), allowed)
    if kind == "draft_tokens":
        return ~_same_history(rows) | _tied_tokens(rows, pair.rows("draft_logits"), allowed)
    return None


def _compare_numbers(rows: Rows, allowed: float) -> Comparison:
    """Largest difference beside the largest entry; infinities and NaN must be the same on both sides."""
    left, right = rows.left.double(), rows.right.double()
    finite = left.isfinite() & right.isfinite()
    same = (left == right) | (left.isnan() & right.isnan())
    sizes = torch.where(finite, torch.maximum(left.abs(), right.abs()), 0.0)
    largest = float(sizes.max()) if sizes.numel() else 0.0
    error = torch.where(finite, (left - right).abs() / (largest or 1.0), torch.inf)
    error = torch.where(same, 0.0, error)
    worst = float(error.max()) if error.numel() else 0.0
    first = None
    if worst > allowed:
        where = _first(error > allowed)
        first = Difference(place=rows.place(where), left=f"{left[where]:.9g}", right=f"{right[where]:.9g}")
    return Comparison(name=rows.name, error=worst, allowed=allowed, first=first)


def _compare_choices(rows: Rows, tied: Tensor | None) -> Comparison:
    """Integers. A row of selected entries or of experts is one choice, in any order; else every integer is one."""
    is_set = kind_of(rows.name) in ("topk", "router_ids")
    left, right = (side.sort(-1).values if is_set else side for side in (rows.left, rows.right))
    differs = (left != right).any(-1) if is_set else left != right
    wrong = differs if tied is None else differs & ~tied
    first = None
    if wrong.any():
        where = _first(wrong)
        words = _apart(left[where], right[where]) if is_set else (str(left[where].item()), str(right[where].item()))
        first = Difference(place=rows.place(where), left=words[0], right=words[1])
    num_wrong = int(wrong.sum())
    num_ties = int(differs.sum()) - num_wrong
    return Comparison(name=rows.name, error=num_wrong, allowed=0, num_ties=num_ties, first=first, is_choice=True)


def _apart(left: Tensor, right: Tensor) -> tuple[str, str]:
    """What either set has that the other lacks."""
    sets = [set(side.tolist()) - {-1} for side in (left, right)]
    only = (sets[0] - sets[1], sets[1] - sets[0])
    words = [", ".join(map(str, sorted(numbers))) or "nothing" for numbers in only]
    return words[0], words[1]


def _tied_selections(rows: Rows, scores: Rows | None, allowed: float) -> Tensor:
    """Rows whose two selections are equally good.

    By the scores of the other trace, every selected entry is at least as high as every other one, up to the tolerance.
    """
    tied = torch.zeros(len(rows.numbers), dtype=torch.bool)
    for row in (rows.left != rows.right).any(-1).nonzero().flatten().tolist():
        own = scores.at([rows.numbers[row]]) if scores is not None else None
        if own is not None:
            swapped = ((rows.left[row], own.right[0]), (rows.right[row], own.left[0]))
            same_size = bool((rows.left[row] >= 0).sum() == (rows.right[row] >= 0).sum())
            tied[row] = same_size and all(_selects_the_best(entries, by, allowed) for entries, by in swapped)
    return tied


def _selects_the_best(entries: Tensor, scores: Tensor, allowed: float) -> bool:
    if not _within(entries, len(scores), lowest=-1):
        return False
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    chosen[entries[entries >= 0].long()] = True
    if chosen.all() or not chosen.any():
        return True
    finite = scores[scores.isfinite()].abs()
    slack = allowed * float(finite.max()) if finite.numel() else 0.0
    return float(scores[chosen].min()) >= float(scores[~chosen].max()) - slack


def _tied_tokens(rows: Rows, logits: Rows | None, allowed: float) -> Tensor:
    """Tokens between which the logits of neither trace decide, up to the tolerance."""
    tied = torch.zeros_like(rows.left, dtype=torch.bool)
    known = [row for row, number in enumerate(rows.numbers) if logits is not None and number in logits.numbers]
    found = logits.at([rows.numbers[row] for row in known]) if logits is not None else None
    if found is None or found.left.shape[:-1] != rows.left[known].shape:
        return tied
    pairs = torch.stack((rows.left[known], rows.right[known]), -1).long()
    if _within(pairs, found.left.shape[-1], lowest=0):
        gaps = [
            side.gather(-1, pairs).diff(dim=-1).squeeze(-1).abs() <= allowed * side.abs().amax(-1)
            for side in (found.left, found.right)
        ]
        tied[known] = gaps[0] & gaps[1]
    return tied


def _within(numbers: Tensor, count: int, *, lowest: int) -> bool:
    """Whether a file that another program wrote may be used as indices."""
    return not numbers.numel() or (int(numbers.min()) >= lowest and int(numbers.max()) < count)


def _same_history(tokens: Rows) -> Tensor:
    """Drafted tokens before which both traces drafted the same ones ``[drafts, block]``."""
    same = (tokens.left == tokens.right).int()
    before = torch.cat((torch.ones_like(same[:, :1]), same[:, :-1]), 1)
    return before.cumprod(1).bool()


def _first(wrong: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in wrong.nonzero()[0])
