"""Where one output stands in its grammar: which tokens may come next, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from deepinfer_core.errors import RequestError, require
from deepinfer_core.structured_output.mask_rows import allow_all, allow_only, num_mask_words, words_of
from deepinfer_core.structured_output.sources import shortened

if TYPE_CHECKING:
    import llguidance

    from deepinfer_core.structured_output.mask_rows import MaskArray


class GrammarMatcher(Protocol):
    """Where one output stands in its grammar. Not safe to use from two threads at a time."""

    @property
    def is_constrained(self) -> bool:
        """False while every token is allowed and no mask is needed."""
        ...

    @property
    def is_terminated(self) -> bool:
        """True once the end token was accepted; what comes after it is free."""
        ...

    @property
    def error(self) -> str:
        """Why the output cannot go on (the grammar met a limit of the compiler), or nothing."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far."""
        ...

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and nothing changes, if it may not come here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back, at most those that were accepted."""
        ...

    def fill_mask(self, row: MaskArray) -> None:
        """Write the tokens that may come next into a row, in place.

        Raises:
            RequestError: The grammar met a limit of the compiler; the row allows nothing.
        """
        ...

    def clone(self) -> GrammarMatcher:
        """A matcher at the same place that goes its own way."""
        ...

    def replay(self, tokens: Sequence[int]) -> None:
        """Go through tokens that were accepted before, by another matcher of the same grammar.

        Raises:
            RequestError: One may not come where it stands.
        """
        ...


class LlguidanceMatcher:
    """A matcher over llguidance.

    The end token never reaches the library: whether it may come is asked, and that it came is counted here, so that it
    can be taken back like any other.

    Attributes:
        grammar: The same number for all matchers of one compiled grammar.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int, eos_token_id: int, grammar: int = 0) -> None:
        self.grammar = grammar
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos = eos_token_id
        self._num_words = num_mask_words(vocab_size)
        self._num_tokens = 0
        self._num_after = 0
        self._error = ""

    @property
    def is_constrained(self) -> bool:
        return True

    @property
    def is_terminated(self) -> bool:
        return self._num_after > 0

    @property
    def error(self) -> str:
        return self._error

    @property
    def num_tokens(self) -> int:
        return self._num_tokens + self._num_after

    @property
    def native(self) -> llguidance.LLMatcher | None:
        """The library's matcher where its mask is the mask: for filling many at once."""
        return None if self.is_terminated or self._error else self._matcher

    def accept(self, token: int) -> bool:
        if self.is_terminated:
            self._num_after += 1
            return True
        if self._error or not 0 <= token < self._vocab_size:
            return False
        if token == self._eos:
            self._num_after = int(self._matcher.is_accepting())
            return self.is_terminated
        is_accepted = self._matcher.try_consume_tokens([token]) == 1
        self._num_tokens += is_accepted
        self.note_error()
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        require(0 <= num_tokens <= self.num_tokens, f"{num_tokens} tokens to take back of {self.num_tokens} accepted")
        after = min(num_tokens, self._num_after)
        self._num_after -= after
        inside = num_tokens - after
        self._num_tokens -= inside
        if inside and not self._error:
            self._matcher.rollback(inside)
            self.note_error()

    def fill_mask(self, row: MaskArray) -> None:
        words = words_of(row)
        require(words.shape == (self._num_words,), f"a mask row of {words.shape} words, not {self._num_words}")
        if self.is_terminated:
            allow_all(words)
            return
        words.fill(0)
        if not self._error:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            self.note_error()
        if self._error:
            words.fill(0)
            raise RequestError(f"structured_outputs: {self._error}")

    def note_error(self) -> None:
        """Keep the library's error, if it met one: it never leaves that state."""
        if self._matcher.is_error() and not self._error:
            self._error = shortened(self._matcher.get_error())

    def clone(self) -> LlguidanceMatcher:
        copy = LlguidanceMatcher(self._matcher.deep_copy(), self._vocab_size, self._eos, self.grammar)
        copy._num_tokens, copy._num_after, copy._error = self._num_tokens, self._num_after, self._error
        return copy

    def replay(self, tokens: Sequence[int]) -> None:
        replay(self, tokens)


class TriggeredMatcher:
    """Free text up to a sequence of tokens, the grammar behind it.

    Without a bound token the text stays free until the trigger has appeared. Once the bound token appears the rest of
    the trigger is forced, from as much of it as the text ends with.
    """

    def __init__(self, inner: GrammarMatcher, trigger: Sequence[int], bound: int | None = None) -> None:
        require(bool(trigger), "a triggered matcher without a trigger")
        self._inner = inner
        self._trigger = tuple(trigger)
        self._bound = bound
        self._shorter = _shorter_matches(self._trigger)
        self._history: list[tuple[int, bool]] = []
        self._progress = 0
        self._is_forced = False

    @property
    def is_constrained(self) -> bool:
        return self._is_forced or self._is_triggered

    @property
    def is_terminated(self) -> bool:
        return self._inner.is_terminated

    @property
    def error(self) -> str:
        return self._inner.error

    @property
    def num_tokens(self) -> int:
        return len(self._history) + self._inner.num_tokens

    @property
    def active(self) -> GrammarMatcher | None:
        """The matcher of the grammar once the trigger is complete."""
        return self._inner if self._is_triggered else None

    @property
    def _is_triggered(self) -> bool:
        return self._progress == len(self._trigger)

    def accept(self, token: int) -> bool:
        if self._is_triggered:
            return self._inner.accept(token)
        if self._is_forced and token != self._trigger[self._progress]:
            return False
        self._history.append((self._progress, self._is_forced))
        self._progress = self._advanced(token)
        self._is_forced = self._is_forced or token == self._bound
        return True

    def _advanced(self, token: int) -> int:
        """Tokens of the trigger that the text ends with after one more token (Knuth, Morris, Pratt)."""
        progress = self._progress
        while progress and token != self._trigger[progress]:
            progress = self._shorter[progress - 1]
        return progress + (token == self._trigger[progress])

    def rollback(self, num_tokens: int) -> None:
        require(0 <= num_tokens <= self.num_tokens, f"{num_tokens} tokens to take back of {self.num_tokens} accepted")
        inside = min(num_tokens, self._inner.num_tokens)
        self._inner.rollback(inside)
        outside = num_tokens - inside
        if outside:
            self._progress, self._is_forced = self._history[-outside]
            del self._history[-outside:]

    def fill_mask(self, row: MaskArray) -> None:
        if self._is_triggered:
            self._inner.fill_mask(row)
        elif self._is_forced:
            allow_only(words_of(row), self._trigger[self._progress])
        else:
            allow_all(words_of(row))

    def clone(self) -> TriggeredMatcher:
        copy = TriggeredMatcher(self._inner.clone(), self._trigger, self._bound)
        copy._history = list(self._history)
        copy._progress, copy._is_forced = self._progress, self._is_forced
        return copy

    def replay(self, tokens: Sequence[int]) -> None:
        replay(self, tokens)


def replay(matcher: GrammarMatcher, tokens: Sequence[int]) -> None:
    """Go through tokens that were accepted before.

    Raises:
        RequestError: One may not come where it stands.
    """
    for position, token in enumerate(tokens):
        if not matcher.accept(token):
            reason = matcher.error or "the grammar does not allow it there"
            raise RequestError(f"structured_outputs: token {token} at position {position} of the output: {reason}")


def _shorter_matches(trigger: Sequence[int]) -> list[int]:
    """For each length of a match, the longest shorter one that also ends there."""
    shorter = [0] * len(trigger)
    length = 0
    for at in range(1, len(trigger)):
        while length and trigger[at] != trigger[length]:
            length = shorter[length - 1]
        length += trigger[at] == trigger[length]
        shorter[at] = length
    return shorter
