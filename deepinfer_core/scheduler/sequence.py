"""One sequence of tokens, from its arrival to its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from enum import Enum


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    """Holds no cache memory; new, or preempted."""
    PREFILLING = "prefilling"
    """Admitted; some of its known tokens are not in the cache yet."""
    DECODING = "decoding"
    """All known tokens but the last are in the cache."""
    FINISHED = "finished"
    """Has a finish reason and takes part in nothing more."""


class FinishReason(Enum):
    """Why a sequence ended; the values are what users see."""

    STOP = "stop"
    """End of text, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens``, or the longest sequence that the model or the cache permits."""
    ABORT = "abort"
    """The caller gave it up."""
    TIMEOUT = "timeout"
    """Its deadline passed."""
    ERROR = "error"
    """Something failed for this sequence alone."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """What was asked, and the state that the scheduler keeps; a request with ``n`` answers has ``n`` of them.

    The caller sets what stands above ``num_draft_tokens``; everything below it belongs to the scheduler, is changed
    in place, and is for others to read. Sequences are compared by identity.

    Attributes:
        request_id: The request it belongs to.
        index: Its place among the answers of that request.
        prompt_token_ids: Copied to the front of ``token_ids``.
        max_tokens: Tokens to generate at most.
        eos_token_id: Token that ends the text, or None to go on after it.
        stop_token_ids: Further tokens that end it.
        priority: Lower values are served first, as in vLLM.
        deadline: Time, on the clock of ``Scheduler.plan``, at which it ends with what it has.
        num_draft_tokens: Drafts to verify with the next decode row; the caller may set it before each plan.
        token_ids: Prompt, then output.
        num_prompt_tokens: How many of ``token_ids`` are the prompt.
        arrival: Number in order of arrival, unique within a scheduler.
        rank: Place in the policy's order, smallest first; unique within a scheduler.
        max_num_tokens: Prompt and output at most.
        status: Where it is in its life.
        num_computed_tokens: Leading tokens whose cache entries are valid.
        block_ids: Its cache blocks in order.
        state_slot: Its state slot, 0 while it has none.
        in_flight: True between the plan of a step with it and the end of that step; its memory is then not reused.
        num_preemptions: How often it lost its memory.
        finish_reason: Why it ended, None before that.
        stop_reason: The stop token or string that ended it, or what failed, if there is more to say than the reason.
    """

    request_id: str
    index: int = 0
    prompt_token_ids: InitVar[Iterable[int]]
    max_tokens: int
    eos_token_id: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    deadline: float = math.inf
    num_draft_tokens: int = 0
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    arrival: int = field(init=False, default=-1)
    rank: tuple[int, ...] = field(init=False, default=())
    max_num_tokens: int = field(init=False, default=0)
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)
    num_computed_tokens: int = field(init=False, default=0)
    block_ids: list[int] = field(init=False, default_factory=list[int])
    state_slot: int = field(init=False, default=0)
    in_flight: bool = field(init=False, default=False)
    num_preemptions: int = field(init=False, default=0)
    finish_reason: FinishReason | None = field(init=False, default=None)
    stop_reason: int | str | None = field(init=False, default=None)

    def __post_init__(self, prompt_token_ids: Iterable[int]) -> None:
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far; also the position of the token that comes next."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of what was generated."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens that the cache does not hold."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that may still be generated."""
        return self.max_num_tokens - len(self.token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id!r}[{self.index}], {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens computed)"
        )
