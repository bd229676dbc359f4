"""Known failures: checks that are expected to fail for a while, each with a reason, an issue and an expiry date.

They are run all the same. One that passes, or is past its date, or matches no check fails the run, so the
list can only shrink.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ConfigError

_KEYS = ("id", "reason", "issue", "expires")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """One check that a backend does not pass yet.

    Attributes:
        id: Of the check, whole.
        reason: What is wrong, in words.
        issue: Where it is tracked.
        expires: The last day on which it is accepted.
    """

    id: str
    reason: str
    issue: str
    expires: date

    def expired(self, today: date) -> bool:
        return today > self.expires


def read_known_failures(file: Path) -> tuple[KnownFailure, ...]:
    """Read ``[[failure]]`` tables with ``id``, ``reason``, ``issue`` and ``expires``.

    Raises:
        ConfigError: The file cannot be read, or entries are incomplete, unknown or repeated; lists every problem.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(str(error), source=str(file)) from error
    entries = content.get("failure", [])
    problems = [f"unknown table {name!r}; entries are [[failure]] tables" for name in content if name != "failure"]
    for number, entry in enumerate(entries, 1):
        problems += [f"failure {number}: {problem}" for problem in _problems(entry)]
    ids = [entry.get("id") for entry in entries]
    problems += [f"{repeated!r} is listed twice" for repeated in sorted({i for i in ids if i and ids.count(i) > 1})]
    if problems:
        raise ConfigError(problems, source=str(file))
    return tuple(KnownFailure(**entry) for entry in entries)


def unmatched(known: Iterable[KnownFailure], ids: Iterable[str], suites: Iterable[str]) -> list[KnownFailure]:
    """Known failures in the suites named that match none of the checks."""
    there, concerned = set(ids), set(suites)
    return [failure for failure in known if failure.id.split("/")[0] in concerned and failure.id not in there]


def _problems(entry: Mapping[str, Any]) -> list[str]:
    problems = [f"lacks {key!r}" for key in _KEYS if not entry.get(key)]
    problems += [f"has the unknown key {key!r}; known are {', '.join(_KEYS)}" for key in entry if key not in _KEYS]
    if entry.get("expires") and type(entry["expires"]) is not date:
        problems.append(f"expires = {entry['expires']!r} is not a date such as 2027-01-31 (without quotes)")
    return problems
