"""Chi-square tests, and what many of them say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch

FEWEST = 5.0
"""Cells that expect less are counted together."""


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Chance that chi-square exceeds a value: the regularised incomplete gamma function Q(k/2, x/2)."""
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1])) if freedom else 1.0


def fits(counts: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> float:
    """p-value of counts against a law; 0 where something impossible happened."""
    total = sum(counts.values())
    if any(number and law.get(key, 0.0) <= 0 for key, number in counts.items()):
        return 0.0
    cells = _merge([(counts.get(key, 0), total * chance) for key, chance in law.items()])
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return chi_square_tail(statistic, len(cells) - 1)


def _merge(cells: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    large = [cell for cell in cells if cell[1] >= FEWEST]
    small = [cell for cell in cells if cell[1] < FEWEST]
    rest = (sum(seen for seen, _ in small), sum(expected for _, expected in small))
    if rest[1] >= FEWEST or not large:
        return [*large, rest] if small else large
    last = large.pop()
    return [*large, (last[0] + rest[0], last[1] + rest[1])]


def alike(left: Mapping[Hashable, int], right: Mapping[Hashable, int]) -> float:
    """p-value of two samples having one law: homogeneity of their counts."""
    totals = sum(left.values()), sum(right.values())
    share = totals[0] / sum(totals)
    pairs = [(left.get(key, 0), right.get(key, 0)) for key in left.keys() | right.keys()]
    fewest = FEWEST / min(share, 1 - share)
    cells = [pair for pair in pairs if sum(pair) >= fewest]
    rest = [pair for pair in pairs if sum(pair) < fewest]
    if rest:
        cells.append((sum(a for a, _ in rest), sum(b for _, b in rest)))
    statistic = sum((a - share * (a + b)) ** 2 / (share * (1 - share) * (a + b)) for a, b in cells)
    return chi_square_tail(statistic, len(cells) - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm's step-down), in the order given: the least is the family's."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def counted(rows: Iterable[Sequence[int]]) -> Counter[tuple[int, ...]]:
    """How often each row occurs."""
    return Counter(map(tuple, rows))
