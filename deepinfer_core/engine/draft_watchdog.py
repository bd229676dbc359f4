"""Notices that no draft is ever accepted: answers are right all the same, so nobody else would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.logging import get_logger

if TYPE_CHECKING:
    from deepinfer_core.outputs import DraftMetrics

log = get_logger(__name__)

NUM_BLOCKS = 200
"""Blocks without an accepted draft, one after the other, that are no chance any more."""


class DraftWatchdog:
    """Warns once when block after block of drafts is refused from its first draft on."""

    def __init__(self, num_blocks: int = NUM_BLOCKS) -> None:
        """Begin to count.

        Args:
            num_blocks: After how many blocks without an accepted draft to warn.
        """
        self._limit = num_blocks
        self._num_refused = 0
        self._has_warned = False

    def note(self, drafts: DraftMetrics) -> int:
        """Take note of what became of drafts.

        Args:
            drafts: Of one step.

        Returns:
            Blocks without an accepted draft, when that has just been warned of; else 0.
        """
        self._num_refused = 0 if drafts.num_accepted else self._num_refused + drafts.num_blocks
        if self._has_warned or self._num_refused < self._limit:
            return 0
        self._has_warned = True
        log.warning(
            "none of the drafts of the last %d blocks was accepted, so that speculative decoding only costs time; the "
            "draft module of the checkpoint is probably not that of this model, or was not converted as the model "
            "was: check it, or switch speculative decoding off",
            self._num_refused,
        )
        return self._num_refused
