"""Rates of late."""

from __future__ import annotations

import pytest

from deepinfer_core.observability.rate import RateWindow


def test_first_amount_came_before_the_time_that_is_counted() -> None:
    window = RateWindow(10.0)
    assert window.per_second(0.0) == 0.0

    window.add(0.0, 1000)
    assert window.per_second(1.0) == 0.0
    window.add(2.0, 30)
    window.add(4.0, 50)

    assert window.per_second(4.0) == pytest.approx(80 / 4)


def test_rate_falls_without_new_amounts_and_ends_at_zero() -> None:
    window = RateWindow(10.0)
    for second in range(6):
        window.add(float(second), 0.1)

    rates = [window.per_second(now) for now in (5.0, 7.0, 10.0, 12.5, 14.0, 15.5, 100.0)]

    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(0.1)
    assert rates[2] == pytest.approx(0.05)
    assert rates[-2:] == [0.0, 0.0]


def test_amounts_at_one_moment_have_no_rate_yet() -> None:
    window = RateWindow(10.0)
    window.add(1.0, 5)
    window.add(1.0, 5)

    assert window.per_second(1.0) == 0.0


def test_old_amounts_are_forgotten() -> None:
    window = RateWindow(1.0)
    for number in range(1000):
        window.add(number / 10, 1)

    assert len(window._amounts) <= 12
    assert window.per_second(99.9) == pytest.approx(10.0)
