"""The pytest plugin: one test for each check, on the accelerator that is asked for.

A conftest loads it (``pytest_plugins = ["deepinfer_core.conformance.plugin"]``); a stub of three lines adopts a suite::

    from deepinfer_core.conformance.plugin import suite_test

    test_ops = suite_test("ops")
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.conformance.check import Check, Result
from deepinfer_core.conformance.exclusions import KnownFailure, read_known_failures
from deepinfer_core.conformance.runner import run_check, unmatched_results

if TYPE_CHECKING:
    from deepinfer_core.conformance.report import ConformanceReport
    from deepinfer_core.conformance.subject import Subject


@dataclass
class Run:
    """What one pytest run tests, and what became of it so far.

    Attributes:
        accelerator: As asked for.
        subject: The backend that serves it.
        known: Known failures by id.
        ids: Every check that was collected, before pytest deselected any.
        results: Of the checks that were run.
    """

    accelerator: str
    subject: Subject
    known: dict[str, KnownFailure]
    ids: list[str] = field(default_factory=list[str])
    results: list[Result] = field(default_factory=list[Result])

    @property
    def stale(self) -> list[Result]:
        """Known failures, in the suites that were collected, that match no check."""
        return list(unmatched_results(self.known.values(), self.ids, {name.split("/")[0] for name in self.ids}))

    def report(self) -> ConformanceReport:
        from deepinfer_core.conformance.report import make_report

        return make_report(self.subject, self.accelerator, [*self.results, *self.stale])


_RUN = pytest.StashKey[Run]()
_SUITE_ATTRIBUTE = "conformance_suite"


def suite_test(name: str) -> Callable[..., None]:
    """The test function of one suite; pytest calls it once for each check."""

    def test(check: Check, conformance_run: Run) -> None:
        result = run_check(check, conformance_run.known, date.today(), conformance_run.accelerator)
        conformance_run.results.append(result)
        if result.status == "known failure":
            pytest.xfail(result.detail)
        if result.status == "failed":
            pytest.fail(result.detail, pytrace=False)

    setattr(test, _SUITE_ATTRIBUTE, name)
    return test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a conformance run."""
    policies = [policy.value for policy in FallbackPolicy]
    group = parser.getgroup("conformance")
    group.addoption(
        "--accelerator", default="cpu", metavar="NAME", help="accelerator whose backend is tested (default: cpu)"
    )
    group.addoption(
        "--policy",
        default=FallbackPolicy.ALLOW_REFERENCE.value,
        choices=policies,
        help="also demand this much of every op",
    )
    group.addoption(
        "--known-failures",
        type=Path,
        metavar="FILE",
        help="TOML list of known failures (default: known_failures/NAME.toml beside the stubs)",
    )
    group.addoption("--conformance-json", type=Path, metavar="FILE", help="write the report of the run to FILE")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check of the suite that a stub adopts."""
    name = getattr(metafunc.function, _SUITE_ATTRIBUTE, None)
    if name is None:
        return
    from deepinfer_core.conformance.suites import SUITES

    run = metafunc.config.stash.get(_RUN, None) or _start(metafunc.config, metafunc.definition.path.parent)
    checks = list(SUITES[name](run.subject))
    run.ids += [check.id for check in checks]
    metafunc.parametrize("check", checks, ids=[check.id for check in checks])


@pytest.fixture
def conformance_run(request: pytest.FixtureRequest) -> Run:
    """What this pytest run tests."""
    return request.config.stash[_RUN]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Backend, device, versions and policy, when any suite was collected."""
    from deepinfer_core.conformance.report import heading

    run = config.stash.get(_RUN, None)
    return heading(run.report()) if run else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A known failure that matches no check fails the run; the report is written if asked for."""
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return
    if run.stale and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    file = session.config.getoption("--conformance-json")
    if file is not None:
        file.write_text(json.dumps(run.report().as_json(), indent=2) + "\n", encoding="utf-8")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Checks passed, refused by a limit, known to fail and failed, for each family."""
    run = config.stash.get(_RUN, None)
    if run is None:
        return
    from deepinfer_core.conformance.report import family_table

    terminalreporter.section(f"conformance of backend {run.subject.backend.name!r}")
    for line in family_table(run.report().families):
        terminalreporter.write_line(line)
    for result in run.stale:
        terminalreporter.write_line(result.detail, red=True)


def _start(config: pytest.Config, folder: Path) -> Run:
    """Load the backend, and the known failures that were named or lie beside the stubs."""
    from deepinfer_core.backend.registry import load, select
    from deepinfer_core.conformance.subject import subject_of
    from deepinfer_core.ops import catalogue

    accelerator = str(config.getoption("--accelerator"))
    backend = load(select(accelerator))
    subject = subject_of(backend, catalogue(), FallbackPolicy(config.getoption("--policy")))
    named = config.getoption("--known-failures")
    file = named or folder / "known_failures" / f"{backend.name}.toml"
    known = read_known_failures(file) if named or file.exists() else ()
    run = config.stash[_RUN] = Run(accelerator, subject, {failure.id: failure for failure in known})
    return run
