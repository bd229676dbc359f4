"""Sequential temperature scaling: confidences whose product is the share of drafts that really survive.

The confidence head says of each draft how likely it is accepted when all before it were. What decides how many drafts
pay is the product of the first j of them, so that is what gets calibrated: one temperature for each position, fitted
from the first to the last with those before it fixed (spec dspark 4, DSpark paper 3.2.1). A temperature keeps the order
of blocks at its position; it only moves the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import ConfigError
from deepinfer_core.speculation.observation import DraftObservation

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Truths: TypeAlias = NDArray[np.bool_]

GRID: tuple[float, ...] = tuple(10.0 ** (step / 20) for step in range(-20, 21))
"""Temperatures that are tried: 41 from 0.1 to 10, evenly spaced in their logarithm; 1 is one of them."""
NUM_BINS = 15
"""Equal parts of 0 .. 1 in which predictions are compared with what happened."""
LARGEST_LOGIT = 60.0
"""Bound of a logit over its temperature, as in the op ``speculation.confidence``."""
_SMALLEST_PROBABILITY = 1e-8
_SAME_ERROR = 1e-12
"""Errors that differ by less are equal: their sums were rounded."""
_SOURCE = "calibration"
_MORE = "give more prompts, or let them generate more tokens"


@dataclass(frozen=True, slots=True)
class Observations:
    """Blocks as arrays.

    Attributes:
        logits: ``[n, gamma]``, raw confidence logits.
        num_verified: ``[n]``, leading drafts whose acceptance is known.
        num_accepted: ``[n]``, leading drafts that were accepted.
    """

    logits: Floats
    num_verified: Integers
    num_accepted: Integers

    @classmethod
    def of(cls, blocks: Iterable[DraftObservation]) -> Observations:
        """Stack blocks; those of which nothing was verified are left out.

        A block that ends early, behind a draft that could not be drawn, is filled up with what is never looked at.

        Raises:
            ConfigError: There are none, or one contradicts itself.
        """
        listed = [block for block in blocks if block.num_verified]
        if not listed:
            raise ConfigError(f"no block of drafts was verified, so that there is nothing to fit; {_MORE}", _SOURCE)
        if problems := [problem for block in listed if (problem := _contradiction(block))]:
            raise ConfigError(problems, _SOURCE)
        logits = np.zeros((len(listed), max(len(block.confidence_logits) for block in listed)))
        for row, block in zip(logits, listed, strict=True):
            row[: len(block.confidence_logits)] = block.confidence_logits
        return cls(
            logits=logits,
            num_verified=np.array([block.num_verified for block in listed], dtype=np.int64),
            num_accepted=np.array([block.num_accepted for block in listed], dtype=np.int64),
        )

    @property
    def block_size(self) -> int:
        """Drafts of a block, gamma."""
        return self.logits.shape[1]

    def known(self, position: int) -> Truths:
        """``[n]``: blocks in which the draft at ``position`` (from 0) was judged, and so were all before it."""
        return self.num_verified > position

    def survived(self, position: int) -> Truths:
        """``[n]``: blocks whose drafts up to ``position`` (from 0) were all accepted."""
        return self.num_accepted > position


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Blocks of one position whose predicted survival is about the same.

    Attributes:
        predicted: Mean predicted survival.
        accepted: Share that did survive.
        count: Blocks.
    """

    predicted: float
    accepted: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMeasure:
    """How well the survival of drafts up to one position is predicted.

    Attributes:
        position: From 1.
        num_blocks: Blocks in which it is known.
        predicted: Mean predicted survival.
        accepted: Share of blocks that survived.
        ece: Expected calibration error.
        ece_by_chance: About what it would be if every prediction were right, because blocks are few.
        auc: Area under the curve of true over false positives; None where every block survived, or none did.
        bins: The reliability diagram; bins without blocks are left out.
    """

    position: int
    num_blocks: int
    predicted: float
    accepted: float
    ece: float
    ece_by_chance: float
    auc: float | None
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTemperatures:
    """Temperatures, and what they do to blocks of requests that they were not fitted on.

    Attributes:
        temperatures: One for each position.
        num_requests: Requests that they were fitted on.
        num_blocks: Blocks of these.
        num_held_out_requests: Requests that they were measured on.
        num_held_out_blocks: Blocks of these.
        before: The held-out blocks without calibration, by position.
        after: The same blocks with these temperatures.
    """

    temperatures: tuple[float, ...]
    num_requests: int
    num_blocks: int
    num_held_out_requests: int
    num_held_out_blocks: int
    before: tuple[PositionMeasure, ...]
    after: tuple[PositionMeasure, ...]


def fit_temperatures(
    observations: Observations, grid: Sequence[float] = GRID, bins: int = NUM_BINS
) -> tuple[float, ...]:
    """The temperature of each position, from the first to the last, that predicts survival up to it best.

    T_j minimises the expected calibration error of S_{j-1} * sigmoid(z_j / T) over the grid, where S_{j-1} is the
    product of the positions before with their temperatures. Among equally good ones the nearest to 1 is taken.

    Args:
        observations: Blocks that were verified in full width: the length must not depend on confidence.
        grid: Temperatures to try, all positive.
        bins: Of the calibration error.

    Raises:
        ConfigError: A position was verified in no block.
    """
    _require_every_position(observations)
    before = np.zeros(len(observations.logits))
    chosen: list[float] = []
    for position in range(observations.block_size):
        known, logits = observations.known(position), observations.logits[:, position]
        accepted = observations.survived(position)[known]
        predictions = (np.exp(before + log_sigmoid(logits, temperature))[known] for temperature in grid)
        errors = [expected_calibration_error(predicted, accepted, bins) for predicted in predictions]
        chosen.append(_nearest_to_one(grid, errors))
        before += log_sigmoid(logits, chosen[-1])
    return tuple(chosen)


def fit_and_measure(blocks: Sequence[DraftObservation], *, hold_out_every: int = 2) -> FittedTemperatures:
    """Fit on the blocks of some requests and measure, before and after, on those of the others.

    Args:
        blocks: In the order of the requests; of these every ``hold_out_every``-th is held out, so that a file sorted
            by kind of prompt has all kinds on both sides.
        hold_out_every: 2 or more.

    Raises:
        ConfigError: There are fewer than two requests, or some position was verified in no block of either side.
    """
    request_ids = tuple(dict.fromkeys(block.request_id for block in blocks if block.num_verified))
    if len(request_ids) == 1:
        raise ConfigError(
            f"all blocks are of one request, and the result is measured on requests that it was not fitted on; {_MORE}",
            _SOURCE,
        )
    held_out_ids = frozenset(request_ids[hold_out_every - 1 :: hold_out_every])
    fitted = Observations.of(block for block in blocks if block.request_id not in held_out_ids)
    held_out = Observations.of(block for block in blocks if block.request_id in held_out_ids)
    temperatures = fit_temperatures(fitted)
    return FittedTemperatures(
        temperatures=temperatures,
        num_requests=len(request_ids) - len(held_out_ids),
        num_blocks=len(fitted.logits),
        num_held_out_requests=len(held_out_ids),
        num_held_out_blocks=len(held_out.logits),
        before=measure(held_out, (1.0,) * held_out.block_size),
        after=measure(held_out, temperatures),
    )


def measure(
    observations: Observations, temperatures: Sequence[float], bins: int = NUM_BINS
) -> tuple[PositionMeasure, ...]:
    """How well survival is predicted with these temperatures, for each position.

    Raises:
        ConfigError: A position was verified in no block, or the number of temperatures is not that of positions.
    """
    _require_every_position(observations)
    if len(temperatures) != observations.block_size:
        raise ConfigError(
            f"{len(temperatures)} temperatures for blocks of {observations.block_size} drafts; give one for each draft",
            _SOURCE,
        )
    logarithms = log_survival(observations.logits, temperatures)
    positions: list[PositionMeasure] = []
    for position in range(observations.block_size):
        known = observations.known(position)
        scores, accepted = logarithms[known, position], observations.survived(position)[known]
        predicted = np.exp(scores)
        positions.append(
            PositionMeasure(
                position=position + 1,
                num_blocks=int(known.sum()),
                predicted=float(predicted.mean()),
                accepted=float(accepted.mean()),
                ece=expected_calibration_error(predicted, accepted, bins),
                ece_by_chance=error_by_chance(predicted, bins),
                auc=area_under_curve(scores, accepted),
                bins=reliability(predicted, accepted, bins),
            )
        )
    return tuple(positions)


def expected_calibration_error(predicted: Floats, accepted: Truths, bins: int = NUM_BINS) -> float:
    """Mean distance, over all blocks, between the prediction of a bin and what happened to its blocks.

    Args:
        predicted: ``[n]``, probabilities; clamped to 1e-8 .. 1 - 1e-8.
        accepted: ``[n]``.
        bins: Equal parts of 0 .. 1.

    Returns:
        Between 0 and 1: the sum over bins of |mean prediction - accepted share| * blocks of the bin / n.
    """
    predicted, places = _binned(predicted, bins)
    differences = np.bincount(places, weights=predicted - accepted, minlength=bins)
    return float(np.abs(differences).sum() / len(predicted))


def error_by_chance(predicted: Floats, bins: int = NUM_BINS) -> float:
    """The calibration error to expect of right predictions, with as many blocks as there are.

    The blocks of a bin that survive then differ from their expectation by sqrt(2 / pi) standard deviations on average,
    taken as normal; a bin of few blocks, all sure, differs by less.

    Args:
        predicted: As of :func:`expected_calibration_error`.
        bins: As there.
    """
    predicted, places = _binned(predicted, bins)
    variances = np.bincount(places, weights=predicted * (1 - predicted), minlength=bins)
    return float(math.sqrt(2 / math.pi) * np.sqrt(variances).sum() / len(predicted))


def area_under_curve(scores: Floats, accepted: Truths) -> float | None:
    """The chance that an accepted block has a higher score than a rejected one; equal scores count one half.

    Args:
        scores: ``[n]``, any numbers; only their order matters.
        accepted: ``[n]``.

    Returns:
        1 for perfect order, 0.5 for none; None unless there are blocks of both kinds.
    """
    num_accepted = int(accepted.sum())
    num_rejected = len(accepted) - num_accepted
    if not num_accepted or not num_rejected:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # from 1; equal scores share their mean rank
    wins = ranks[accepted].sum() - num_accepted * (num_accepted + 1) / 2
    return float(wins / (num_accepted * num_rejected))


def reliability(predicted: Floats, accepted: Truths, bins: int = NUM_BINS) -> tuple[ReliabilityBin, ...]:
    """What was predicted and what happened, by bin; arguments as of :func:`expected_calibration_error`."""
    predicted, places = _binned(predicted, bins)
    counts = np.bincount(places, minlength=bins)
    sums = np.bincount(places, weights=predicted, minlength=bins)
    hits = np.bincount(places, weights=accepted.astype(np.float64), minlength=bins)
    return tuple(
        ReliabilityBin(predicted=float(total / count), accepted=float(hit / count), count=int(count))
        for total, hit, count in zip(sums, hits, counts, strict=True)
        if count
    )


def weighted_ece(positions: Sequence[PositionMeasure]) -> float:
    """Calibration error over all positions, each with the weight of its blocks."""
    return sum(one.ece * one.num_blocks for one in positions) / sum(one.num_blocks for one in positions)


def log_survival(logits: Floats, temperatures: Sequence[float]) -> Floats:
    """``[n, gamma]``: logarithm of the predicted survival up to each position; never increases along a row."""
    return np.cumsum(log_sigmoid(logits, np.asarray(temperatures, dtype=np.float64)), axis=1)


def log_sigmoid(logits: Floats, temperature: float | Floats) -> Floats:
    """``log sigmoid(clamp(logits / temperature, -60, 60))``: it still tells probabilities apart that round to 1."""
    return -np.logaddexp(0.0, -np.clip(logits / temperature, -LARGEST_LOGIT, LARGEST_LOGIT))


def _binned(predicted: Floats, bins: int) -> tuple[Floats, Integers]:
    """Clamped predictions, and the bin of each."""
    clamped = np.clip(predicted, _SMALLEST_PROBABILITY, 1 - _SMALLEST_PROBABILITY)
    return clamped, np.floor(clamped * bins).astype(np.int64)


def _nearest_to_one(grid: Sequence[float], errors: Sequence[float]) -> float:
    """The best temperature; of equally good ones the nearest to 1 in ratio, and then the higher, which claims less."""
    least = min(errors)
    best = [temperature for temperature, error in zip(grid, errors, strict=True) if error <= least + _SAME_ERROR]
    return min(best, key=lambda temperature: (round(abs(math.log(temperature)), 9), -temperature))


def _require_every_position(observations: Observations) -> None:
    missing = [str(j + 1) for j in range(observations.block_size) if not observations.known(j).any()]
    if missing:
        raise ConfigError(
            f"of {observations.block_size} positions of a block, {', '.join(missing)} "
            f"{'was' if len(missing) == 1 else 'were'} verified in none of {len(observations.logits)} blocks; {_MORE}",
            _SOURCE,
        )


def _contradiction(block: DraftObservation) -> str:
    """What is wrong with a block; empty when nothing is."""
    logits, whose = block.confidence_logits, f"a block of request {block.request_id!r}"
    if not all(map(math.isfinite, logits)):
        return f"{whose} has confidence logits {logits}, which must be finite; check the weights of the draft module"
    if not 0 <= block.num_accepted <= block.num_verified <= len(logits):
        counts = f"{block.num_accepted} drafts accepted, {block.num_verified} verified and {len(logits)} in all"
        return f"{whose} has {counts}, which cannot be"
    return ""
