"""Goodput: how many requests in a second are served as fast as was promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer_core.engine.benchmark import Measurement, RequestTimes
from deepinfer_core.errors import ConfigError, nearest

KINDS = {"ttft": "first_token_s", "tpot": "token_s", "e2e": "total_s"}
"""What a goal can be about -> the time of a request."""
_SPELLINGS = {"e2el": "e2e"}
"""vLLM's spelling -> ours."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit that a request keeps or not.

    Attributes:
        kind: One of :data:`KINDS`.
        limit_s: The longest time that keeps it.
    """

    kind: str
    limit_s: float

    def is_met(self, request: RequestTimes) -> bool:
        """Whether a request keeps it; one that has no such time does."""
        time_s: float | None = getattr(request, KINDS[self.kind])
        return time_s is None or time_s <= self.limit_s

    def __str__(self) -> str:
        return f"{self.kind} {1000 * self.limit_s:g} ms"


def parse_goals(texts: Sequence[str]) -> tuple[Goal, ...]:
    """Goals from texts such as ``ttft:500``, times in milliseconds, as ``vllm bench serve --goodput`` takes them.

    Raises:
        ConfigError: Some are wrong; all problems are listed.
    """
    goals: list[Goal] = []
    problems: list[str] = []
    for text in texts:
        try:
            goals.append(_goal(text))
        except ConfigError as error:
            problems += error.problems
    kinds = [goal.kind for goal in goals]
    problems += [f"{kind} has {kinds.count(kind)} goals; give one" for kind in KINDS if kinds.count(kind) > 1]
    if problems:
        raise ConfigError(problems, source="--goodput")
    return tuple(goals)


def num_good(measurement: Measurement, goals: Sequence[Goal]) -> int:
    """Requests that ended without an error and kept every goal."""
    return sum(not request.error and all(goal.is_met(request) for goal in goals) for request in measurement.requests)


def _goal(text: str) -> Goal:
    name, colon, value = text.partition(":")
    kind = _SPELLINGS.get(name, name)
    if not colon or kind not in KINDS:
        kinds = tuple(KINDS)
        raise ConfigError(
            f"{text!r} is no goal; give KIND:MILLISECONDS with KIND one of {', '.join(kinds)}{nearest(name, kinds)}"
        )
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        raise ConfigError(f"{text!r}: {value!r} must be a number of milliseconds above 0")
    return Goal(kind, milliseconds / 1000)
