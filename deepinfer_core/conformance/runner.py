"""Try checks, with known failures taken into account."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from datetime import date

from deepinfer_core.conformance.check import Check, Result, Status
from deepinfer_core.conformance.exclusions import KnownFailure, unmatched
from deepinfer_core.errors import DeepInferError


def run_check(check: Check, known: Mapping[str, KnownFailure], today: date, accelerator: str) -> Result:
    """Try one check.

    Args:
        check: What to try.
        known: Known failures by id.
        today: Decides which of them have expired.
        accelerator: For the command that repeats a failure.
    """
    start = time.perf_counter()
    failure = known.get(check.id)
    try:
        status, detail = _passed(check.run() or "", failure)
    except Exception as error:  # noqa: BLE001  # whatever a backend raises is a finding and must not end the run
        status, detail = _failed(error, failure, today)
    if status == "failed":
        command = f"deepinfer conformance --accelerator {accelerator} --only {check.id}"
        detail = f"{check.id} on {accelerator}: {detail}\nrepeat with: {command}"
    return Result(id=check.id, family=check.family, status=status, detail=detail, seconds=time.perf_counter() - start)


def run_checks(
    checks: Iterable[Check], known: Iterable[KnownFailure] = (), *, today: date, accelerator: str, only: str = ""
) -> Iterator[Result]:
    """Try the checks whose id contains ``only``, then report known failures that match no check at all."""
    by_id = {failure.id: failure for failure in known}
    seen: set[str] = set()
    suites: set[str] = set()
    for check in checks:
        seen.add(check.id)
        suites.add(check.suite)
        if only in check.id:
            yield run_check(check, by_id, today, accelerator)
    yield from unmatched_results(by_id.values(), seen, suites)


def unmatched_results(known: Iterable[KnownFailure], ids: Iterable[str], suites: Iterable[str]) -> Iterator[Result]:
    """One failed result for each known failure that matches no check."""
    for failure in unmatched(known, ids, suites):
        yield Result(
            id=failure.id,
            family="known failures",
            status="failed",
            detail=f"known failure {failure.id!r} matches no check; remove it",
        )


def _passed(refusal: str, failure: KnownFailure | None) -> tuple[Status, str]:
    if failure is not None:
        return "failed", f"it passes, but is listed as a known failure ({failure.reason}); remove it from the list"
    return ("refused", refusal) if refusal else ("passed", "")


def _failed(error: Exception, failure: KnownFailure | None, today: date) -> tuple[Status, str]:
    text = str(error) if isinstance(error, DeepInferError) else _where(error)
    if failure is None:
        return "failed", text
    if failure.expired(today):
        return "failed", f"known failure expired on {failure.expires} ({failure.reason}, {failure.issue}): {text}"
    return "known failure", f"{failure.reason} ({failure.issue}, until {failure.expires}): {text}"


def _where(error: Exception) -> str:
    """An unexpected exception with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"raised {type(error).__name__}: {error}{place}"
