"""Verification steps with drafts of which some are wrong, by a seeded plan."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deepinfer_core.config.architecture import MAX_BACKTRACK_TOKENS
from tests.model.driver import FedSequence


@dataclass(frozen=True)
class Verification:
    """The drafts of one step and how many of them are the true tokens."""

    drafts: list[int]
    accepted: int


def next_verification(sequence: FedSequence, chance: random.Random, rows: int = 0, accepted: int = -1) -> Verification:
    """A step that goes no further than the end of the text.

    Args:
        sequence: Its tokens are the true continuation.
        chance: Chooses what is not given, and the wrong tokens.
        rows: Query rows, 1 .. 6; 0 for any.
        accepted: Drafts that are right; -1 for any number.
    """
    left = len(sequence.tokens) - sequence.length
    count = (rows or chance.randint(1, MAX_BACKTRACK_TOKENS)) - 1
    right = min(chance.randint(0, count) if accepted < 0 else accepted, count, left - 1)
    start = sequence.length + 1
    true = sequence.tokens[start : start + right]
    wrong = [chance.randrange(200) for _ in range(count - right)]
    following = sequence.tokens[start + right : start + right + 1]
    if wrong and wrong[:1] == following:
        wrong[0] = (wrong[0] + 1) % 200
    return Verification(true + wrong, right)
