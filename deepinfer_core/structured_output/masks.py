"""Masks of a whole batch, filled by several threads outside Python's lock."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import llguidance

from deepinfer_core.errors import RequestError, require
from deepinfer_core.structured_output.mask_rows import WORD_BYTES, allow_all, words_of
from deepinfer_core.structured_output.matcher import GrammarMatcher, LlguidanceMatcher, TriggeredMatcher

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from deepinfer_core.structured_output.mask_rows import MaskArray


_MOST_THREADS = 32


class MaskFiller:
    """Fills masks for many matchers at once.

    Args:
        num_threads: Threads; None takes all cores that this process may use: its own thread waits meanwhile.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._executor = llguidance.LLExecutor(num_threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS))

    def fill(self, matchers: Sequence[GrammarMatcher | None], masks: MaskArray) -> Mapping[int, str]:
        """Fill one row for each matcher, in place; None allows everything.

        Args:
            matchers: One for each row, each at most once: they are used by several threads.
            masks: At least as many rows, ``[R, ceil(V / 32)]``.

        Returns:
            Row -> reason, of matchers that met a limit of the compiler; these rows allow nothing.
        """
        rows = words_of(masks)
        require(rows.shape[0] >= len(matchers), f"{len(matchers)} masks for {rows.shape[0]} rows")
        together: list[tuple[LlguidanceMatcher, LLMatcher, int]] = []
        failed: dict[int, str] = {}
        for index, matcher in enumerate(matchers):
            inner = matcher.active or matcher if isinstance(matcher, TriggeredMatcher) else matcher
            if inner is None:
                allow_all(rows[index])
            elif isinstance(inner, LlguidanceMatcher) and (native := inner.native) is not None:
                together.append((inner, native, index))
            else:
                self._fill_one(inner, rows[index], index, failed)
        if together:
            self._fill_together(together, rows, failed)
        return failed

    def _fill_one(self, matcher: GrammarMatcher, row: MaskArray, index: int, failed: dict[int, str]) -> None:
        try:
            matcher.fill_mask(row)
        except RequestError as error:
            failed[index] = str(error)

    def _fill_together(
        self,
        together: list[tuple[LlguidanceMatcher, LLMatcher, int]],
        rows: NDArray[np.int32],
        failed: dict[int, str],
    ) -> None:
        """Fill rows in parallel.

        Matchers of one grammar share a lexer, which serves one of them at a time; side by side they go to one thread.
        """
        together.sort(key=_grammar_of)
        natives = [(native, index) for _, native, index in together]
        self._executor.unsafe_compute_mask_ptr(natives, rows.ctypes.data, rows.shape[1] * WORD_BYTES, rows.shape[0])
        for matcher, native, index in together:
            if native.is_error():
                matcher.note_error()
                rows[index].fill(0)
                failed[index] = f"structured_outputs: {matcher.error}"


def _grammar_of(entry: tuple[LlguidanceMatcher, LLMatcher, int]) -> int:
    return entry[0].grammar


def fill_draft_masks(matcher: GrammarMatcher, drafts: Sequence[int], rows: MaskArray) -> int:
    """Fill a mask for the next token and one behind each draft token, up to the first that may not come.

    Drafts are walked by a clone: a limit of the compiler that only a draft meets is no concern of the output, and a
    matcher never leaves an error. Rows behind a draft that may not come are not written: verification cannot reach
    them, because the mask in front of it gives it no probability. The row behind a draft that met a limit, and those
    behind that, allow nothing.

    Args:
        matcher: Where the output stands; left as it was.
        drafts: Tokens that a draft proposes.
        rows: At least one more than drafts, ``[1 + len(drafts), ceil(V / 32)]``; written in place.

    Returns:
        Rows written.

    Raises:
        RequestError: The grammar met a limit of the compiler before any draft.
    """
    words = words_of(rows)
    matcher.fill_mask(words[0])
    walker = matcher.clone()
    for place, draft in enumerate(drafts, 1):
        if not walker.accept(draft):
            if not walker.error:
                return place
            words[place : len(drafts) + 1].fill(0)
            break
        try:
            walker.fill_mask(words[place])
        except RequestError:
            words[place : len(drafts) + 1].fill(0)
            break
    return len(drafts) + 1
