"""What one verified block of drafts tells about the draft module's confidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftObservation:
    """One block of one sequence that a decode step has verified.

    Attributes:
        request_id: Whose it is; blocks of a request resemble each other, so that they are fitted on or measured on
            together.
        confidence_logits: Of every draft of the block, as the confidence head gives them: before temperature, clamp
            and sigmoid.
        num_verified: Leading drafts whose acceptance is known: those that the target model has seen, up to the first
            accepted token that ends the request, it included. What stands behind was never judged.
        num_accepted: Leading drafts that were accepted, ``num_verified`` at most.
    """

    request_id: str
    confidence_logits: tuple[float, ...]
    num_verified: int
    num_accepted: int
