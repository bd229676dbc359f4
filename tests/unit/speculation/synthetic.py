"""Blocks of drafts whose true acceptance is known, with a confidence that is off by a known temperature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepinfer_core.speculation.observation import DraftObservation

SIZE = 5
SCALES = (2.0, 0.5, 3.0, 1.0, 1.6)
"""Of each position: the logits are the true ones times this, so that a temperature of this much is right."""


def make_blocks(
    num_blocks: int,
    scales: Sequence[float] = SCALES,
    *,
    num_requests: int = 100,
    seed: int = 0,
    stop_share: float = 0.0,
) -> list[DraftObservation]:
    """Draft j of a block is accepted with the chance sigmoid(z_j), independently; its logit is z_j * scales[j].

    Args:
        num_blocks: How many.
        scales: One for each position.
        num_requests: Blocks are dealt to these in turn.
        seed: Of everything.
        stop_share: Chance of a block to be judged up to a random draft only, as at the end of a text.
    """
    random = np.random.default_rng(seed)
    size = len(scales)
    true = random.normal(1.2, 1.5, (num_blocks, size))
    is_accepted = random.random((num_blocks, size)) < 1 / (1 + np.exp(-true))
    num_accepted = np.cumprod(is_accepted, axis=1).sum(axis=1)
    is_cut = random.random(num_blocks) < stop_share
    num_verified = np.where(is_cut, random.integers(0, size + 1, num_blocks), size)
    return [
        DraftObservation(
            request_id=str(number % num_requests),
            confidence_logits=tuple(map(float, true[number] * scales)),
            num_verified=int(num_verified[number]),
            num_accepted=int(min(num_accepted[number], num_verified[number])),
        )
        for number in range(num_blocks)
    ]


def block(*logits: float, accepted: int, verified: int | None = None, request: str = "0") -> DraftObservation:
    """One block by hand, verified in full unless said otherwise."""
    num_verified = len(logits) if verified is None else verified
    return DraftObservation(
        request_id=request, confidence_logits=logits, num_verified=num_verified, num_accepted=accepted
    )
