"""Bars are for people: shown on a terminal with the rate of tokens, and nowhere else."""

from __future__ import annotations

import io
import sys
import time

import pytest

from deepinfer_core.cli.progress import RequestBar, track


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_counts_requests_on_a_terminal_only(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    with RequestBar(2) as bar:
        bar.count(30, failed=False)
        time.sleep(0.15)  # a bar is drawn at most ten times in a second
        bar.count(0, failed=True)

    assert (bar.num_ended, bar.num_failed, bar.num_tokens) == (2, 1, 30)
    assert bar.seconds > 0
    assert ("tokens/s, 1 failed" in stream.getvalue()) is is_terminal
    assert bool(stream.getvalue()) is is_terminal


def test_tracked_items_come_as_they_are_and_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([3, 1, 2])) == [3, 1, 2]

    assert capsys.readouterr().err == ""
