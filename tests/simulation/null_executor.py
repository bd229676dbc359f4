"""Runs steps without a model, and remembers whose tokens every piece of cache memory holds."""

from __future__ import annotations

import random
from collections.abc import Collection

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import Outcome, SequencePlan, StepPlan
from tests.simulation.workload import token_at

Life = tuple[Sequence, int]
"""A sequence between two preemptions."""


class NullExecutor:
    """Yields the null model's tokens, if the memory that a plan points at holds what the model would have to read.

    A block remembers its owner, its place among the owner's blocks and how far it is filled, a state slot its owner and
    the position up to which it has seen the owner's tokens. Blocks and slots that were handed to another sequence, were
    written out of order or by two, or are missing in a plan fail here, as they would give wrong tokens on a device.
    """

    def __init__(self, rng: random.Random, fails_at: dict[str, int], num_drafts: int) -> None:
        """Start with empty memory.

        Args:
            rng: Decides how many drafts are proposed and accepted.
            fails_at: Request -> position whose logits are broken.
            num_drafts: Drafts per sequence and step at most.
        """
        self._rng = rng
        self._fails_at = fails_at
        self._num_drafts = num_drafts
        self.blocks: dict[int, tuple[Life, int, int]] = {}
        self._slots: dict[int, tuple[Life, int]] = {}

    def run(self, plan: StepPlan) -> Collection[Outcome]:
        """Execute a step."""
        return [outcome for entry in plan.entries if (outcome := self._run(entry)) is not None]

    def _run(self, entry: SequencePlan) -> Outcome | None:
        sequence = entry.sequence
        self._read_and_write(entry)
        if not entry.samples:
            return None
        num_drafts = 0 if entry.is_prefill else entry.num_tokens - 1
        num_accepted = self._rng.randint(0, num_drafts)
        sequence.num_draft_tokens = self._rng.randint(0, self._num_drafts)
        first = entry.start + entry.num_tokens - num_drafts
        positions = range(first, first + 1 + num_accepted)
        fails_at = self._fails_at.get(sequence.request_id, -1)
        self._seen(sequence, positions[-1])
        tokens = tuple(
            token_at(sequence.request_id, sequence.index, p) for p in positions if p < fails_at or fails_at < 0
        )
        if len(tokens) < len(positions):
            return Outcome(token_ids=tokens, finish_reason=FinishReason.ERROR, stop_reason="logits are not finite")
        return Outcome(token_ids=tokens)

    def _read_and_write(self, entry: SequencePlan) -> None:
        """Every position before the rows must be there; then the rows are."""
        sequence, end = entry.sequence, entry.start + entry.num_tokens
        life = (sequence, sequence.num_preemptions)
        assert entry.start == 0 or self._slots[sequence.state_slot] == (life, entry.start)
        for place, block_id in enumerate(sequence.block_ids):
            first = place * BLOCK_TOKENS
            if first >= end:
                break
            if first < entry.start:
                owner, owner_place, num_filled = self.blocks[block_id]
                assert (owner, owner_place) == (life, place)
                assert num_filled >= min(entry.start - first, BLOCK_TOKENS)
            self.blocks[block_id] = (life, place, min(end - first, BLOCK_TOKENS))
        self._seen(sequence, end)

    def _seen(self, sequence: Sequence, end: int) -> None:
        self._slots[sequence.state_slot] = ((sequence, sequence.num_preemptions), end)
