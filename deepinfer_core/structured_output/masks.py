"""Masks of a whole batch, filled by several threads outside Python's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import llguidance

from deepinfer_core.errors import RequestError, require
from deepinfer_core.structured_output.mask_rows import WORD_BYTES, allow_all, words_of
from deepinfer_core.structured_output.matcher import GrammarMatcher, LlguidanceMatcher, TriggeredMatcher

if TYPE_CHECKING:
    from deepinfer_core.structured_output.mask_rows import MaskArray


class MaskFiller:
    """Fills masks for many matchers at once.

    Args:
        num_threads: Threads; None takes what the library thinks right for this machine.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._executor = llguidance.LLExecutor(num_threads)

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
        together: list[tuple[LlguidanceMatcher, int]] = []
        failed: dict[int, str] = {}
        for index, matcher in enumerate(matchers):
            inner = matcher.active or matcher if isinstance(matcher, TriggeredMatcher) else matcher
            if inner is None:
                allow_all(rows[index])
            elif isinstance(inner, LlguidanceMatcher) and inner.native is not None:
                together.append((inner, index))
            else:
                self._fill_one(inner, rows[index : index + 1], index, failed)
        if together:
            self._fill_together(together, rows, failed)
        return failed

    def _fill_one(self, matcher: GrammarMatcher, row: MaskArray, index: int, failed: dict[int, str]) -> None:
        try:
            matcher.fill_mask(row[0])
        except RequestError as error:
            failed[index] = str(error)

    def _fill_together(
        self, together: Sequence[tuple[LlguidanceMatcher, int]], rows: MaskArray, failed: dict[int, str]
    ) -> None:
        words = words_of(rows)
        natives = [(native, index) for matcher, index in together if (native := matcher.native) is not None]
        row_bytes = words.shape[1] * WORD_BYTES
        self._executor.unsafe_compute_mask_ptr(natives, words.ctypes.data, row_bytes, words.shape[0])
        for matcher, index in together:
            matcher.note_error()
            if matcher.error:
                words[index].fill(0)
                failed[index] = f"structured_outputs: {matcher.error}"


def fill_draft_masks(matcher: GrammarMatcher, drafts: Sequence[int], rows: MaskArray) -> int:
    """Fill a mask for the next token and one behind each draft token, up to the first that may not come.

    The matcher is left as it was. Rows behind that token are not written: verification cannot reach them, because the
    mask in front of it gives it no probability.

    Args:
        matcher: Where the output stands.
        drafts: Tokens that a draft proposes.
        rows: At least one more than drafts, ``[1 + len(drafts), ceil(V / 32)]``; written in place.

    Returns:
        Rows written.

    Raises:
        RequestError: The grammar met a limit of the compiler.
    """
    words = words_of(rows)
    num_accepted = 0
    try:
        matcher.fill_mask(words[0])
        for draft in drafts:
            if not matcher.accept(draft):
                break
            num_accepted += 1
            matcher.fill_mask(words[num_accepted])
    finally:
        matcher.rollback(num_accepted)
    return num_accepted + 1
