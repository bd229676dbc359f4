"""Throughput of adaptive lengths under steady load, against fixed lengths and worse planners (spec dspark 10)."""

from __future__ import annotations

import pytest

from deepinfer_core.scheduler.draft_budget import AdaptiveLengths, FixedLengths
from deepinfer_core.scheduler.drafts import DraftPlanner
from deepinfer_core.scheduler.step_time import StepTimeModel
from tests.simulation.draft_load import NUM_DRAFTS, Machine, Result, measured, run, staircase
from tests.simulation.draft_planners import DeepInferLengths, Variant, early_stop, full_scan

SEQUENCE_STEPS = 6000
PER_ROW = 8e-5


def model(machine: Machine, width: int, num_sequences: int) -> StepTimeModel:
    draft = {count: machine.draft(count) for count in (1, 256)}
    return StepTimeModel(measured(machine.forward, width, num_sequences * (1 + NUM_DRAFTS) + width), draft=draft)


def decode(planner: DraftPlanner, machine: Machine, num_sequences: int, **options: float) -> Result:
    num_steps = max(40, SEQUENCE_STEPS // num_sequences)
    return run(planner, machine, num_sequences, num_steps=num_steps, warm_up=30, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("num_sequences", [1, 4, 16, 64, 128, 256])
@pytest.mark.parametrize(
    ("width", "free", "per_row"), [(1, 0, 8e-5), (8, 0, 8e-5), (32, 0, 8e-5), (1, 16, 8e-5), (1, 0, 4e-4)]
)
def test_adaptive_lengths_are_never_slower_than_the_best_fixed_one(
    width: int, free: int, per_row: float, num_sequences: int
) -> None:
    machine = Machine(forward=staircase(width, per_row=per_row, free=free))

    fixed = [decode(FixedLengths(number), machine, num_sequences).rate for number in range(NUM_DRAFTS + 1)]
    adaptive = decode(AdaptiveLengths(model(machine, width, num_sequences)), machine, num_sequences).rate

    assert adaptive >= 0.98 * max(fixed)
    if (num_sequences, per_row) == (64, PER_ROW):
        assert adaptive > 1.03 * max(fixed)


@pytest.mark.slow
@pytest.mark.parametrize("num_sequences", [4, 64])
def test_that_holds_with_noise_and_contexts_that_the_curve_did_not_have(num_sequences: int) -> None:
    machine = Machine(forward=staircase(8, per_row=PER_ROW), noise=0.05, context=1e-7)

    fixed = [decode(FixedLengths(number), machine, num_sequences).rate for number in range(NUM_DRAFTS + 1)]
    adaptive = decode(AdaptiveLengths(model(machine, 8, num_sequences)), machine, num_sequences).rate

    assert adaptive >= 0.98 * max(fixed)


def test_that_holds_where_only_small_sizes_were_measured_and_drafts_are_dear() -> None:
    """A host: every row costs as much as a token is worth, and a start-up has no time for large sizes."""
    machine = Machine(forward=lambda rows: 12e-3 + 1.25e-3 * rows, draft=lambda count: 7e-3 + 2.1e-3 * count)
    curve = {rows: machine.forward(rows) for rows in (1, 2, 4, 8, 16, 32, 64)}
    times = StepTimeModel(curve, draft={count: machine.draft(count) for count in (1, 2, 4, 8)}, interpolate=True)

    fixed = [decode(FixedLengths(number), machine, 128).rate for number in range(NUM_DRAFTS + 1)]
    adaptive = run(AdaptiveLengths(times), machine, 128, num_steps=120, warm_up=30).rate

    assert adaptive >= 0.98 * max(fixed)


def test_fewer_drafts_are_verified_the_higher_the_load() -> None:
    machine = Machine(forward=staircase(8, per_row=PER_ROW))

    drafts = []
    for count in (1, 16, 64, 256):
        result = decode(AdaptiveLengths(model(machine, 8, count)), machine, count)
        drafts.append(result.drafts / result.sequence_steps)

    assert drafts == sorted(drafts, reverse=True)
    assert drafts[0] > 4
    assert drafts[-1] < 1


@pytest.fixture(scope="module")
def ablation() -> dict[str, float]:
    """Rates of worse and unfair planners relative to the full scan over what is current."""
    machine, count = Machine(forward=staircase(8, per_row=PER_ROW)), 64
    planners = {
        "unfair": Variant(model(machine, 8, count), lag=0),
        "early stop": Variant(model(machine, 8, count), search=early_stop),
        "lag 1": Variant(model(machine, 8, count), search=full_scan),
        "lag 2": Variant(model(machine, 8, count), lag=2),
        "lag 4": Variant(model(machine, 8, count), lag=4),
        "stale split": Variant(model(machine, 8, count), split_lag=1),
        "random split": Variant(model(machine, 8, count), random_split=True),
        "deepinfer": DeepInferLengths(model(machine, 8, count)),
        "ours": AdaptiveLengths(model(machine, 8, count)),
    }
    rates = {name: decode(planner, machine, count).rate for name, planner in planners.items()}
    rates["not calibrated"] = decode(AdaptiveLengths(model(machine, 8, count)), machine, count, sharpness=2.0).rate
    return {name: rate / rates["unfair"] for name, rate in rates.items()}


def test_older_confidences_cost_next_to_nothing(ablation: dict[str, float]) -> None:
    assert min(ablation[name] for name in ("lag 1", "lag 2", "deepinfer", "ours")) >= 0.98
    assert ablation["lag 4"] >= 0.96  # less than 1 % for each step of age


def test_split_by_older_confidences_is_measurably_worse(ablation: dict[str, float]) -> None:
    assert ablation["stale split"] <= 0.985


def test_random_split_early_stop_and_missing_calibration_are_worse(ablation: dict[str, float]) -> None:
    assert ablation["random split"] <= 0.93
    assert ablation["early stop"] <= 0.9
    assert ablation["not calibrated"] <= 0.995
