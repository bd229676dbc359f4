"""Known failures are run, and the list of them can only shrink."""

from __future__ import annotations

from datetime import date

import pytest

from deepinfer_core.conformance.check import Check, ConformanceFailure
from deepinfer_core.conformance.exclusions import KnownFailure, read_known_failures
from deepinfer_core.conformance.runner import run_checks
from deepinfer_core.errors import ConfigError

TODAY = date(2026, 6, 1)


def passes() -> None:
    return None


def fails() -> None:
    raise ConformanceFailure("wrong by far")


def check(run, name: str = "ops/a.b/one/native") -> Check:
    return Check(id=name, family="a", run=run)


def known(name: str = "ops/a.b/one/native", expires: date = TODAY) -> KnownFailure:
    return KnownFailure(id=name, reason="not yet", issue="issue 7", expires=expires)


def statuses(checks, failures, only: str = "") -> list[tuple[str, str]]:
    results = run_checks(checks, failures, today=TODAY, accelerator="x", only=only)
    return [(result.status, result.detail) for result in results]


def test_known_failure_is_accepted_until_its_date():
    ((status, detail),) = statuses([check(fails)], [known()])

    assert status == "known failure"
    assert "not yet (issue 7, until 2026-06-01): wrong by far" in detail


def test_known_failure_fails_after_its_date():
    ((status, detail),) = statuses([check(fails)], [known(expires=date(2026, 5, 31))])

    assert status == "failed"
    assert "expired on 2026-05-31" in detail


def test_known_failure_that_passes_fails():
    ((status, detail),) = statuses([check(passes)], [known()])

    assert status == "failed"
    assert "it passes, but is listed as a known failure" in detail


def test_known_failure_that_matches_no_check_fails():
    first, second = statuses([check(passes)], [known("ops/a.b/two/native")])

    assert first == ("passed", "")
    assert second == ("failed", "known failure 'ops/a.b/two/native' matches no check; remove it")


def test_known_failure_of_a_check_that_was_not_selected_is_left_alone():
    checks = [check(passes), check(fails, "ops/a.b/two/native")]

    assert statuses(checks, [known("ops/a.b/two/native")], only="one") == [("passed", "")]


def test_known_failure_of_a_suite_that_was_not_run_is_left_alone():
    assert statuses([check(passes)], [known("capture/a.b/one/native")]) == [("passed", "")]


def test_any_exception_is_a_failure_with_its_place():
    def broken() -> None:
        raise RuntimeError("kernel launch failed")

    ((status, detail),) = statuses([check(broken)], [])

    assert status == "failed"
    assert "raised RuntimeError: kernel launch failed at " in detail
    assert "test_known_failures.py:" in detail


def test_file_is_read(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('[[failure]]\nid = "ops/a"\nreason = "r"\nissue = "7"\nexpires = 2026-06-01\n')

    assert read_known_failures(file) == (KnownFailure(id="ops/a", reason="r", issue="7", expires=TODAY),)


def test_every_problem_of_a_file_is_told_at_once(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('[[failure]]\nid = "ops/a"\nexpires = "soon"\nwhy = "r"\n[[failure]]\nid = "ops/a"\n[more]\n')

    with pytest.raises(ConfigError) as caught:
        read_known_failures(file)

    text = str(caught.value)
    for problem in (
        "unknown table 'more'",
        "failure 1: lacks 'reason'",
        "failure 1: lacks 'issue'",
        "failure 1: has the unknown key 'why'",
        "expires = 'soon' is not a date",
        "failure 2: lacks 'expires'",
        "'ops/a' is listed twice",
    ):
        assert problem in text


def test_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_known_failures(tmp_path / "absent.toml")
