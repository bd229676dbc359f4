"""What an engine takes down while it works, until it becomes a record."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from deepinfer_core.observability.records import CompletionStats, StepStats


class TokenTimes:
    """When the tokens of one completion came. Tokens that come together, such as accepted drafts, have one time.

    Attributes:
        first_s: When the first came, in seconds of the engine's monotonic clock; None before.
        last_s: When the latest came.
        num_tokens: How many came.
    """

    __slots__ = ("_gaps", "first_s", "last_s", "num_tokens")

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.num_tokens = 0
        self._gaps = array("d")

    def note(self, now: float, num_tokens: int) -> float | None:
        """Take down that tokens came.

        Args:
            now: When, in seconds of the engine's monotonic clock.
            num_tokens: How many, at least one.

        Returns:
            Seconds since the tokens before; None for the first ones.
        """
        before, self.last_s = self.last_s, now
        self.num_tokens += num_tokens
        if before is None:
            self.first_s = now
            return None
        self._gaps.append(now - before)
        return now - before

    @property
    def gaps_s(self) -> Sequence[float]:
        """Each time from tokens to tokens, in order."""
        return self._gaps

    def stats(self, finish_reason: str) -> CompletionStats:
        """The record of the completion, when it has ended."""
        decode = None if self.first_s is None or self.last_s is None else self.last_s - self.first_s
        return CompletionStats(finish_reason=finish_reason, num_tokens=self.num_tokens, decode_s=decode)


def inter_token_latencies(completions: Sequence[TokenTimes]) -> tuple[float, ...]:
    """The field of that name of ``RequestMetrics``: gaps of all completions, one completion after the other."""
    return tuple(chain.from_iterable(times.gaps_s for times in completions))


class StepCollector:
    """Takes down what happens from step to step, and makes a record of it after each."""

    def __init__(self) -> None:
        self._clear()

    def note_tokens(self, times: TokenTimes, now: float, num_tokens: int, *, arrival_s: float | None = None) -> None:
        """Take down tokens of a completion.

        Args:
            times: The completion's; changed.
            now: When, in seconds of the engine's monotonic clock.
            num_tokens: How many; none changes nothing.
            arrival_s: When its request came, if these are the first tokens of the request; None otherwise.
        """
        if num_tokens == 0:
            return
        gap = times.note(now, num_tokens)
        self._num_generated_tokens += num_tokens
        if gap is not None:
            self._inter_token_s.append(gap)
        if arrival_s is not None:
            self._first_token_s.append(now - arrival_s)

    def note_prefix(self, queries: Mapping[str, int], hits: Mapping[str, int]) -> None:
        """Take down a look-up in the prefix cache: tokens asked for and found, by tier."""
        self._prefix_queries.update(queries)
        self._prefix_hits.update(hits)

    def step(self, **fields: Any) -> StepStats:
        """The record of a step, and a new beginning.

        Args:
            **fields: Every field of :class:`StepStats` that is not taken down here.
        """
        stats = StepStats(
            num_generated_tokens=self._num_generated_tokens,
            prefix_queries=dict(self._prefix_queries),
            prefix_hits=dict(self._prefix_hits),
            first_token_s=tuple(self._first_token_s),
            inter_token_s=tuple(self._inter_token_s),
            **fields,
        )
        self._clear()
        return stats

    def _clear(self) -> None:
        self._num_generated_tokens = 0
        self._prefix_queries: Counter[str] = Counter()
        self._prefix_hits: Counter[str] = Counter()
        self._first_token_s: list[float] = []
        self._inter_token_s: list[float] = []
