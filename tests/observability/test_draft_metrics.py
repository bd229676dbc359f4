"""Counts of drafts: what they add up to, and the watchdog that looks after them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.engine.draft_watchdog import DraftWatchdog
from deepinfer_core.outputs import DraftMetrics

if TYPE_CHECKING:
    import pytest

COUNTS = st.builds(
    lambda blocks, proposed, verified: DraftMetrics(
        num_blocks=blocks, num_proposed=proposed, verified=tuple(verified), accepted=tuple(n // 2 for n in verified)
    ),
    st.integers(0, 9),
    st.integers(0, 99),
    st.lists(st.integers(0, 9), max_size=5),
)


def block(*, accepted: int = 0, number: int = 1) -> DraftMetrics:
    return DraftMetrics(num_blocks=number, verified=(number, number), accepted=(accepted, 0))


@given(COUNTS, COUNTS)
def test_sums_count_everything_once(one: DraftMetrics, other: DraftMetrics) -> None:
    both = one + other

    assert both.num_blocks == one.num_blocks + other.num_blocks
    assert both.num_proposed == one.num_proposed + other.num_proposed
    assert both.num_verified == one.num_verified + other.num_verified
    assert both.num_accepted == one.num_accepted + other.num_accepted
    assert len(both.verified) == len(both.accepted) == max(len(one.verified), len(other.verified))
    assert both == other + one
    assert (both - other) + other == both


def test_shares_are_of_what_was_verified() -> None:
    drafts = DraftMetrics(num_blocks=4, num_proposed=20, verified=(4, 4, 2), accepted=(3, 2, 0))

    assert drafts.acceptance_rate == 0.5
    assert drafts.mean_accepted_length == 2.25


def test_without_drafts_there_are_no_shares() -> None:
    assert DraftMetrics(num_proposed=5).acceptance_rate is None
    assert DraftMetrics(num_proposed=5).mean_accepted_length is None


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_drafts_that_never_stand_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = DraftWatchdog(num_blocks=200)

    told = [watchdog.note(block(number=8)) for _ in range(100)]

    assert [number for number in told if number] == [200]
    assert told[24] == 200
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("none of the drafts of the last 200 blocks was accepted")


def test_a_draft_that_stands_now_and_then_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = DraftWatchdog(num_blocks=10)

    for number in range(1000):
        watchdog.note(block(accepted=int(number % 10 == 9)))

    assert warnings(caplog) == []


def test_drafts_that_stand_no_more_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = DraftWatchdog(num_blocks=10)
    for _ in range(100):
        watchdog.note(block(accepted=1))

    assert [watchdog.note(block()) for _ in range(10)] == [0] * 9 + [10]
    assert len(warnings(caplog)) == 1


def test_drafts_that_are_made_but_not_verified_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = DraftWatchdog(num_blocks=2)

    for _ in range(10):
        watchdog.note(DraftMetrics(num_proposed=5))

    assert warnings(caplog) == []
