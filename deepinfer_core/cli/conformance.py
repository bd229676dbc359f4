"""``deepinfer conformance``: run the shipped kit on a backend and print one report to publish."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.conformance.check import Result


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "conformance",
        description="Try every op, in every way in which the backend can run it, against the references. "
        "Exit code 0 when no check failed, 1 otherwise.",
    )
    parser.add_argument(
        "--accelerator", default="auto", metavar="NAME", help="accelerator whose backend is tested (default: auto)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write FILE: the report with every check")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only checks whose id contains TEXT, e.g. ops/kv_cache"
    )
    parser.add_argument(
        "--policy",
        default=FallbackPolicy.ALLOW_REFERENCE.value,
        choices=[policy.value for policy in FallbackPolicy],
        help="also demand this much of every op (default: allow_reference, which demands nothing)",
    )
    parser.add_argument(
        "--known-failures",
        type=Path,
        metavar="FILE",
        help="TOML list of checks that are expected to fail, with reason, issue and expiry",
    )


def run(args: argparse.Namespace) -> int:
    """Run all suites and print the report."""
    from deepinfer_core.backend.registry import load, select
    from deepinfer_core.conformance.exclusions import read_known_failures
    from deepinfer_core.conformance.report import make_report
    from deepinfer_core.conformance.runner import run_checks
    from deepinfer_core.conformance.subject import subject_of
    from deepinfer_core.conformance.suites import all_checks
    from deepinfer_core.ops import catalogue

    known = read_known_failures(args.known_failures) if args.known_failures else ()
    backend = load(select(args.accelerator))
    subject = subject_of(backend, catalogue(), FallbackPolicy(args.policy))
    checks = list(all_checks(subject))
    results = run_checks(checks, known, today=date.today(), accelerator=backend.name, only=args.only)
    report = make_report(subject, args.accelerator, _with_progress(results, len(checks)))
    print(report.as_text())
    if args.json:
        _write_json(args.json, report.as_json())
    return 0 if report.passed else 1


def _with_progress(results: Iterable[Result], num_checks: int) -> list[Result]:
    """Collect results behind a progress bar, which is shown to a person only."""
    from tqdm import tqdm

    return list(tqdm(results, total=num_checks, unit="check", leave=False, disable=None))


def _write_json(file: Path, report: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}", source="--json") from error
