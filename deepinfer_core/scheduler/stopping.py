"""When a sequence ends by the tokens it produced."""

from __future__ import annotations

from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import Outcome

Ending = tuple[FinishReason, int | str | None]
"""Finish reason and stop reason."""


def record_tokens(sequence: Sequence, outcome: Outcome) -> Ending | None:
    """Append new tokens up to the one that ends the sequence, and say why it ends; None when it goes on.

    Tokens behind an end are dropped: accepted drafts may run past it. What the caller decided holds at the last token,
    also where the length would end the sequence anyway.
    """
    num_behind = len(outcome.token_ids)
    for token_id in outcome.token_ids:
        num_behind -= 1
        sequence.token_ids.append(token_id)
        ending = _ending(sequence, token_id)
        if ending and (num_behind or outcome.finish_reason is None):
            return ending
    return None if outcome.finish_reason is None else (outcome.finish_reason, outcome.stop_reason)


def _ending(sequence: Sequence, token_id: int) -> Ending | None:
    """Whether the last token ends the sequence; the end of text needs no stop reason, as in vLLM."""
    if token_id == sequence.eos_token_id:
        return FinishReason.STOP, None
    if token_id in sequence.stop_token_ids:
        return FinishReason.STOP, token_id
    if sequence.num_tokens >= sequence.max_num_tokens:
        return FinishReason.LENGTH, None
    return None
