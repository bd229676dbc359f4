"""Which drafts a step verifies, and when drafts are made at all."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.errors import ConfigError
from deepinfer_core.scheduler.draft_budget import AdaptiveLengths, FixedLengths, best_budget
from deepinfer_core.scheduler.draft_survival import RankedGains, Survivals, UsualGains
from deepinfer_core.scheduler.drafts import DraftPlanner, Proposal, StepTiming
from deepinfer_core.scheduler.sequence import Sequence
from deepinfer_core.scheduler.step_time import StepTimeModel
from tests.simulation.draft_planners import BestNow, DeepInferLengths, rates_of
from tests.unit.scheduler.builders import make_sequence

PLENTY = 1 << 20
FLAT = {1: 1.0, 64: 1.0}
CHEAP = {rows: 1.0 + 1e-6 * rows for rows in range(1, 65)}
LINEAR = {rows: 8.0 + rows for rows in range(1, 65)}
STEEP = {rows: float(rows) for rows in range(1, 65)}
STAIRS = {4 * stair: 8.0 + 3.0 * stair for stair in range(1, 17)}
JUMP = {1: 1.0, 2: 2.0, 3: 2.222}
"""The paper's example of a global search that biases the output (spec dspark 7.3)."""

Confidences = tuple[float, ...]
Pair = tuple[Confidences, Confidences]
"""Of the proposal before the current one, and of the current one."""


def sequence(older: Confidences, current: Confidences) -> Sequence:
    made = make_sequence()
    for confidence in (older, current):
        made.take_proposal(Proposal(tuple(range(len(confidence))), confidence))
    return made


def choose(planner: DraftPlanner, pairs: list[Pair], limits: list[int] | None = None, spare: int = PLENTY) -> list[int]:
    limits = [len(current) for _, current in pairs] if limits is None else limits
    return list(planner.lengths([sequence(*pair) for pair in pairs], limits, spare))


def adaptive(curve: dict[int, float]) -> AdaptiveLengths:
    return AdaptiveLengths(StepTimeModel(curve))


chances = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))
confidences = st.lists(chances, max_size=4).map(tuple)
curves = st.one_of(
    st.sampled_from([FLAT, LINEAR, STEEP, STAIRS, JUMP]),
    st.dictionaries(st.integers(1, 20), st.floats(0.1, 10.0), min_size=1),
)
pairs_of_few = st.lists(st.tuples(confidences, confidences), min_size=1, max_size=3)


@given(st.lists(confidences, min_size=1, max_size=3), curves, st.booleans(), st.data())
def test_no_other_lengths_promise_more(rows: list[Confidences], curve: dict[int, float], smooth: bool, data) -> None:
    time = StepTimeModel(curve, interpolate=smooth)
    limits = [data.draw(st.integers(0, len(row))) for row in rows]
    spare = data.draw(st.integers(0, 12))
    # The older generation is the current one, so that the total is the best for these very chances.
    chosen = choose(AdaptiveLengths(time), [(row, row) for row in rows], limits, spare)

    def rate(lengths: tuple[int, ...]) -> float:
        tokens = len(rows) + sum(sum(list(accumulate(row, mul))[:n]) for row, n in zip(rows, lengths, strict=True))
        return tokens / time.seconds(len(rows), len(rows) + sum(lengths), proposes=True)

    everything = product(*[range(limit + 1) for limit in limits])
    best = max(rate(lengths) for lengths in everything if sum(lengths) <= spare)
    assert rate(tuple(chosen)) == pytest.approx(best, rel=1e-12)


@given(st.lists(chances, max_size=40), st.integers(1, 8), curves, st.booleans(), st.data())
def test_no_other_total_promises_more(
    pool: list[float], count: int, curve: dict[int, float], smooth: bool, data
) -> None:
    time = StepTimeModel(curve, interpolate=smooth)
    ranked = sorted(pool, reverse=True)
    most = data.draw(st.integers(0, len(ranked)))

    rates = rates_of(list(accumulate(ranked[:most], initial=float(count))), count, time)
    found = best_budget(RankedGains(ranked, count), most, count, time, proposes=True)

    assert rates[found] == pytest.approx(max(rates), rel=1e-12)


@given(st.lists(chances, max_size=40), st.integers(1, 12), st.floats(0.0, 1.5))
def test_sums_of_the_likeliest(pool: list[float], count: int, least: float) -> None:
    ranked = sorted(pool, reverse=True)
    gains = RankedGains(ranked, count)

    assert [gains.of(number) for number in range(len(ranked) + 1)] == pytest.approx([*accumulate(ranked, initial=0.0)])
    assert gains.worth(least) == sum(chance > least for chance in ranked)

    usual = UsualGains(gains.curve(), count)
    points = range(0, len(ranked) + 1, count)  # with lines between points only these are exact
    assert [usual.of(number) for number in points] == pytest.approx([gains.of(number) for number in points])


def test_usual_drafts_are_worth_their_rows_up_to_a_point_of_the_curve() -> None:
    usual = UsualGains([0.0, 0.25, 0.45, 0.6, 0.7, 0.7], num_sequences=8)  # chances 1, 0.8, 0.6, 0.4, 0 of two each

    assert [usual.worth(least) for least in (0.0, 0.3, 0.5, 0.9, 1.0)] == [8, 8, 6, 2, 0]
    assert usual.of(5) == pytest.approx(8 * 0.525)
    assert usual.of(99) == pytest.approx(8 * 0.7)


@given(pairs_of_few, st.data())
def test_shares_are_the_likeliest_drafts_in_the_stated_order(pairs: list[Pair], data) -> None:
    rows = [current for _, current in pairs if current]
    limits = [data.draw(st.integers(1, len(row))) for row in rows]
    budget = data.draw(st.integers(0, sum(limits)))
    if not rows:
        return

    survival = [list(accumulate(row, mul)) for row in rows]
    order = sorted((-survival[r][j], j, r) for r in range(len(rows)) for j in range(limits[r]))
    expected = [sum(1 for _, _, owner in order[:budget] if owner == r) for r in range(len(rows))]
    first = [{j for _, j, owner in order[:budget] if owner == r} for r in range(len(rows))]

    assert Survivals([tuple(row) for row in survival], limits).likeliest(budget) == expected
    assert first == [set(range(number)) for number in expected]  # no draft without those before it


@given(pairs_of_few, curves, st.integers(0, 12))
def test_total_does_not_depend_on_current_confidences(pairs: list[Pair], curve: dict[int, float], spare: int) -> None:
    possible = [(older, tuple(max(chance, 0.01) for chance in current)) for older, current in pairs]
    with_others = [(older, tuple(max(1.0 - chance, 0.01) for chance in current)) for older, current in pairs]

    total = sum(choose(adaptive(curve), possible, None, spare))

    assert total == sum(choose(adaptive(curve), with_others, None, spare))
    # Drafts without a chance take no row, which changes nothing for the others.
    num_possible = sum(chance > 0.0 for _, current in pairs for chance in accumulate(current, mul))
    assert sum(choose(adaptive(curve), pairs, None, spare)) == min(total, num_possible)


@given(pairs_of_few, curves, st.integers(0, 12))
def test_drafts_without_a_chance_are_never_verified(pairs: list[Pair], curve: dict[int, float], spare: int) -> None:
    chosen = choose(adaptive(curve), pairs, None, spare)

    for (_, current), number in zip(pairs, chosen, strict=True):
        assert all(chance > 0.0 for chance in current[:number])


GRID = (0.0, 0.5, 0.9, 1.0)


def late_influences(make: Callable[[], DraftPlanner]) -> Iterator[tuple[int, Confidences, Confidences]]:
    """Cases in which later confidences of a sequence decide whether one of its earlier drafts is verified."""
    older = (0.9, 0.7, 0.5)
    for other, first in product([(0.9, 0.9, 0.9), (0.5, 1.0, 1.0), (1.0, 1.0, 0.0)], GRID):
        by_front: dict[Confidences, tuple[int, Confidences]] = {}
        for rest in product(GRID, repeat=2):
            own = (first, *rest)
            length = choose(make(), [(older, own), (older, other)])[0]
            for k in (1, 2):  # the decision about draft k
                front = own[:k]
                seen, example = by_front.setdefault(front, (min(length, k), own))
                if (seen >= k) != (length >= k):
                    yield k, example, own


PRICES = [FLAT, LINEAR, STEEP, STAIRS, {2: 1.0, 3: 1.6, 4: 2.2, 5: 2.3, 8: 2.9}, {2: 1.0, 3: 1.5, 4: 2.0, 5: 2.1}]


@pytest.mark.parametrize("curve", PRICES)
@pytest.mark.parametrize("kind", [AdaptiveLengths, DeepInferLengths])
def test_later_confidences_never_decide_about_earlier_drafts(
    kind: Callable[[StepTimeModel], DraftPlanner], curve: dict[int, float]
) -> None:
    assert list(late_influences(lambda: kind(StepTimeModel(curve)))) == []


@pytest.mark.parametrize("curve", [STAIRS, *PRICES[4:]])
def test_best_lengths_for_the_current_confidences_fail_that_test(curve: dict[int, float]) -> None:
    assert list(late_influences(lambda: BestNow(StepTimeModel(curve)))) != []


@settings(max_examples=300)
@given(st.lists(st.tuples(confidences, confidences), min_size=1, max_size=4), curves, st.integers(0, 20), st.data())
def test_later_confidences_never_decide_whatever_the_rest_is(
    pairs: list[Pair], curve: dict[int, float], spare: int, data
) -> None:
    limits = [data.draw(st.integers(0, len(current))) for _, current in pairs]
    who = data.draw(st.integers(0, len(pairs) - 1))
    older, current = pairs[who]
    k = data.draw(st.integers(0, len(current)))
    other = current[:k] + tuple(data.draw(chances) for _ in current[k:])
    changed = [*pairs[:who], (older, other), *pairs[who + 1 :]]

    before = choose(adaptive(curve), pairs, limits, spare)[who]
    after = choose(adaptive(curve), changed, limits, spare)[who]

    assert min(before, k) == min(after, k)


def test_paper_example_verifies_by_what_was_known_before() -> None:
    for last in (0.0, 0.5, 1.0):
        assert choose(adaptive(JUMP), [((0.5, 0.5), (0.5, last))]) == [0]
    assert choose(BestNow(StepTimeModel(JUMP)), [((), (1.0, 1.0))]) != choose(
        BestNow(StepTimeModel(JUMP)), [((), (1.0, 0.0))]
    )


def test_equals_go_by_place_and_then_by_sequence() -> None:
    sure = Survivals([(1.0, 1.0, 1.0)] * 3, [3, 1, 3])

    assert [sure.likeliest(budget) for budget in range(8)] == [
        [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 1, 2], [3, 1, 2], [3, 1, 3],
    ]  # fmt: skip


def test_rows_that_are_left_bound_the_total() -> None:
    pairs = [((1.0, 1.0), (1.0, 1.0))] * 3

    assert [sum(choose(adaptive(FLAT), pairs, None, spare)) for spare in (0, 4, 9)] == [0, 4, 6]


def test_sequences_that_may_verify_nothing_get_nothing() -> None:
    pairs = [((), ()), ((1.0, 1.0), (1.0, 1.0)), ((), ())]

    assert choose(adaptive(FLAT), pairs) == [0, 2, 0]
    assert choose(adaptive(FLAT), pairs, [0, 1, 0]) == [0, 1, 0]
    assert choose(adaptive(FLAT), pairs, [0, 0, 0]) == [0, 0, 0]


def test_first_drafts_of_a_sequence_are_sure_before_anything_is_known() -> None:
    assert choose(adaptive(LINEAR), [((), (0.1, 0.1, 0.1))]) == [3]


def test_first_drafts_of_a_sequence_are_expected_to_fare_as_usual() -> None:
    planner = adaptive(STAIRS)
    for _ in range(50):
        choose(planner, [((0.1, 0.1), (0.1, 0.1))] * 4)

    assert choose(planner, [((), (1.0, 1.0))] * 4) == [0, 0, 0, 0]


def test_older_proposal_that_was_shorter_is_completed_and_never_rises() -> None:
    assert choose(adaptive(LINEAR), [((0.5,), (1.0, 1.0, 1.0))]) == [3]
    assert choose(adaptive(LINEAR), [((0.0,), (1.0, 1.0, 1.0))]) == [0]


def warnings_of_lengths(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "deepinfer.scheduler.draft_budget"]


@pytest.mark.parametrize("bad", [math.nan, -0.5, 1.5, math.inf, -math.inf])
def test_confidence_that_is_none_counts_as_a_sure_rejection(bad: float, caplog: pytest.LogCaptureFixture) -> None:
    planner, good = adaptive(CHEAP), (0.9, 0.9, 0.9)
    with caplog.at_level(logging.WARNING, "deepinfer"):
        for _ in range(3):
            assert choose(planner, [(good, (0.9, bad, 0.9)), (good, good)], None, 4) == [1, 3]
    assert ["not a number from 0 to 1" in message for message in warnings_of_lengths(caplog)] == [True]

    assert choose(planner, [((0.9, bad, 0.9), good), ((bad, 0.9, 0.9), good)] * 2) == [1, 1, 0, 0]
    assert choose(planner, [((bad, bad, bad), good)] * 4) == [0] * 4


@pytest.mark.parametrize("bad", [math.nan, -0.5, 1.5, math.inf, -math.inf])
def test_older_confidence_that_is_none_promises_nothing(bad: float) -> None:
    assert choose(adaptive(CHEAP), [((bad, 0.9), (1.0, 1.0))]) == [0]
    assert choose(adaptive(FLAT), [((bad, 0.9), (1.0, 1.0))]) == [0]
    assert choose(adaptive({3: 1.0, 64: 9.0}), [((bad, 0.9), (1.0, 1.0))]) == [2]  # rows that are there are filled


@settings(max_examples=300)
@given(st.lists(pairs_of_few, min_size=2, max_size=4), curves, st.booleans())
def test_time_to_reflect_changes_no_decision(steps: list[list[Pair]], curve: dict[int, float], smooth: bool) -> None:
    rested, hurried = (AdaptiveLengths(StepTimeModel(curve, interpolate=smooth)) for _ in range(2))

    for pairs in steps:
        assert choose(rested, pairs) == choose(hurried, pairs)
        assert rested.proposes(len(pairs)) == hurried.proposes(len(pairs))
        rested.reflect()


def test_total_that_was_prepared_is_taken_as_long_as_nobody_comes_or_goes() -> None:
    time = StepTimeModel(STAIRS)
    planner = AdaptiveLengths(time)
    row = (0.9, 0.8, 0.7)
    members = [sequence(row, row) for _ in range(3)]

    def total(limits: list[int]) -> int:
        for member in members:
            member.take_proposal(Proposal((1, 2, 3), row))
        return sum(planner.lengths(members[: len(limits)], limits, PLENTY))

    before = total([3, 3, 3])
    planner.reflect()
    for _ in range(20):  # a row costs so much now that a draft would not pay
        for num_rows in (4, 8, 12):
            time.observe(StepTiming(num_sequences=3, num_rows=num_rows, verify_s=num_rows**4, rest_s=0, proposed=True))

    assert before == 9
    assert total([3, 3, 3]) == 9  # as prepared
    assert total([3, 3]) == 2


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="probe_interval=0 is below 1"):
        AdaptiveLengths(StepTimeModel(FLAT), probe_interval=0)
    with pytest.raises(ConfigError, match="num_drafts=-1 is negative"):
        FixedLengths(-1)


def test_fixed_lengths_are_the_first_drafts_of_all_until_no_row_is_left() -> None:
    pairs = [((), (0.5,) * 5)] * 3

    assert choose(FixedLengths(3), pairs, [5, 2, 5]) == [3, 2, 3]
    assert choose(FixedLengths(3), pairs, [5, 5, 5], 4) == [3, 1, 0]
    assert FixedLengths(1).proposes(1)
    assert not FixedLengths(0).proposes(1)


# --- whether drafts are made ---


def trained(curve: dict[int, float], draft_s: float, confidence: float, steps: int = 60) -> AdaptiveLengths:
    """A planner that has seen many drafts of one kind."""
    planner = AdaptiveLengths(StepTimeModel(curve, draft={1: draft_s}))
    for _ in range(steps):
        choose(planner, [((confidence,) * 3, (confidence,) * 3)])
    return planner


def test_drafts_are_made_before_anything_is_known() -> None:
    assert adaptive(STEEP).proposes(1)


@pytest.mark.parametrize(
    ("curve", "draft_s", "confidence", "pays"),
    [
        (FLAT, 0.5, 0.9, True),
        (FLAT, 0.5, 0.1, False),  # the draft module takes more than the few tokens save
        (STEEP, 0.0001, 0.9, False),  # rows cost as much as steps
        (LINEAR, 0.5, 0.9, True),
    ],
)
def test_drafts_are_made_where_they_pay(curve: dict[int, float], draft_s: float, confidence: float, pays: bool) -> None:
    planner = trained(curve, draft_s, confidence)

    assert [planner.proposes(1) for _ in range(5)] == [pays] * 5


def test_probe_from_time_to_time_where_they_do_not_pay() -> None:
    planner = trained(STEEP, 0.001, 0.9)

    made = [planner.proposes(1) for _ in range(640)]

    assert [number for number, now in enumerate(made, 1) if now] == list(range(64, 641, 64))


def test_probes_never_take_more_than_half_a_percent_of_the_time() -> None:
    planner = trained(STEEP, 2.0, 0.9)  # twice a step

    made = [planner.proposes(1) for _ in range(5000)]

    assert 0 < sum(made) * 2.0 < 0.005 * 5000


def test_probe_notices_when_drafts_pay_again() -> None:
    planner = trained(FLAT, 0.5, 0.1)
    for _ in range(64 * 40):
        if planner.proposes(1):
            choose(planner, [((), (0.99,) * 3)])

    assert [planner.proposes(1) for _ in range(5)] == [True] * 5


def test_load_that_falls_turns_drafting_on_at_once() -> None:
    curve = {**dict.fromkeys(range(1, 17), 1.0), **{rows: rows / 16 for rows in range(17, 200)}}
    planner = trained(curve, 0.01, 0.6)

    assert not planner.proposes(128)
    assert planner.proposes(2)


def test_what_drafting_takes_is_found_out_where_nobody_measured_it() -> None:
    planner = adaptive(LINEAR)
    choose(planner, [((0.9,), (0.9,))])
    skipped = 0
    for _ in range(200):
        made = planner.proposes(1)
        skipped += not made
        planner.observe(StepTiming(num_sequences=1, num_rows=2, verify_s=10.0, rest_s=0.5, proposed=made))

    assert skipped == 5


@pytest.mark.parametrize(("confidence", "num_skipped"), [(0.9, 0), (0.15, 5)])
def test_steps_without_drafts_are_seen_where_they_might_be_better(confidence: float, num_skipped: int) -> None:
    """Five of them; where drafts promise far more nobody asks."""
    planner = AdaptiveLengths(StepTimeModel({1: 1.0, 2: 1.0, 64: 40.0}, draft={1: 0.01, 64: 0.01}))
    for _ in range(60):
        choose(planner, [((confidence,), (confidence,))])
    skipped = 0
    for _ in range(200):
        made = planner.proposes(1)
        skipped += not made
        planner.observe(StepTiming(num_sequences=1, num_rows=1 + made, verify_s=1.0, rest_s=0.01, proposed=made))

    assert skipped == num_skipped
