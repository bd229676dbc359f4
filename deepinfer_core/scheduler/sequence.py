"""One sequence of tokens, from its arrival to its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from enum import Enum

from deepinfer_core.scheduler.drafts import NO_DRAFTS, Proposal


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

    The caller sets what stands above ``proposal``; everything below it belongs to the scheduler, is changed
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
        arrival_time: When it came, on the same clock; policies that bound waiting read it.
        cache_root: What the keys of its cached blocks begin with; empty: it neither finds nor leaves any.
        proposal: Drafts that may be verified with the next decode row.
        older_survival: Chances of the proposal before that one; empty when there was none.
        token_ids: Prompt, then output.
        num_prompt_tokens: How many of ``token_ids`` are the prompt.
        arrival: Number in order of arrival, unique within a scheduler.
        rank: Place in the policy's order, smallest first; unique within a scheduler.
        max_num_tokens: Prompt and output at most.
        status: Where it is in its life.
        num_computed_tokens: Leading tokens whose cache entries are valid.
        num_planned_tokens: The same once the steps in flight have run; rejected drafts do not count.
        num_pending_tokens: Tokens that the steps in flight will yield, which nobody on the host knows yet.
        block_ids: Its cache blocks in order.
        block_keys: Keys of its leading full blocks, as far as they were needed.
        num_named_blocks: Leading blocks that others may find.
        cut_points: Positions at which its prefill stops for a moment, ascending.
        window_start: First position that has window keys, above 0 after a hit that is replayed.
        store_from: Entries that close before this position are in the cache already.
        state_slot: Its state slot, 0 while it has none.
        num_steps_in_flight: Steps with it that were planned and have not ended. What it holds when it ends is not
            reused before they have.
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
    arrival_time: float = 0.0
    cache_root: bytes = b""
    proposal: Proposal = NO_DRAFTS
    older_survival: tuple[float, ...] = ()
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    arrival: int = field(init=False, default=-1)
    rank: tuple[int, ...] = field(init=False, default=())
    max_num_tokens: int = field(init=False, default=0)
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)
    num_computed_tokens: int = field(init=False, default=0)
    num_planned_tokens: int = field(init=False, default=0)
    num_pending_tokens: int = field(init=False, default=0)
    block_ids: list[int] = field(init=False, default_factory=list[int])
    block_keys: list[bytes] = field(init=False, default_factory=list[bytes])
    num_named_blocks: int = field(init=False, default=0)
    cut_points: tuple[int, ...] = field(init=False, default=())
    window_start: int = field(init=False, default=0)
    store_from: int = field(init=False, default=0)
    state_slot: int = field(init=False, default=0)
    num_steps_in_flight: int = field(init=False, default=0)
    num_preemptions: int = field(init=False, default=0)
    finish_reason: FinishReason | None = field(init=False, default=None)
    stop_reason: int | str | None = field(init=False, default=None)
    _num_open_drafts: int = field(init=False, default=0)

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
    def num_expected_tokens(self) -> int:
        """Tokens that it has once the steps in flight have run, unless one of them ends it."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Expected tokens that the cache will not hold once the steps in flight have run."""
        return self.num_expected_tokens - self.num_planned_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that may still be generated behind the expected ones."""
        return self.max_num_tokens - self.num_expected_tokens

    @property
    def has_open_drafts(self) -> bool:
        """True while a step in flight verifies drafts: how long it gets is not known, so that nothing can follow."""
        return self._num_open_drafts > 0

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def begin_at(self, position: int, *, window_start: int, store_from: int) -> None:
        """Take note that what lies before a position is in the cache; for one that was just admitted."""
        self.num_computed_tokens = self.num_planned_tokens = position
        self.window_start, self.store_from = window_start, store_from

    def take_proposal(self, proposal: Proposal) -> None:
        """Take note of new drafts behind its last token, or that there are none."""
        self.older_survival = self.proposal.survival
        self.proposal = proposal

    def begin_step(self, num_rows: int, *, samples: bool) -> None:
        """Take note that a step with so many of its rows was planned."""
        self.num_steps_in_flight += 1
        self._num_open_drafts = num_rows - self.num_uncomputed_tokens if samples else 0
        self.num_planned_tokens += num_rows - self._num_open_drafts
        if samples:
            self.num_pending_tokens += 1
            self.status = SequenceStatus.DECODING

    def end_step(self, num_rows: int, num_new_tokens: int, *, samples: bool) -> None:
        """Take note that such a step ran, before the tokens that it yielded are added."""
        num_open_drafts, self._num_open_drafts = self._num_open_drafts, 0
        if not samples:
            self.num_computed_tokens += num_rows
            return
        num_accepted = max(num_new_tokens - 1, 0)
        self.num_computed_tokens += num_rows - num_open_drafts + num_accepted
        self.num_planned_tokens += num_accepted
        self.num_pending_tokens -= 1

    def forget_memory(self) -> None:
        """Start over: nothing of it is in the cache. Steps in flight yield their tokens, but not cache entries."""
        self.num_computed_tokens = self.num_planned_tokens = self.num_pending_tokens = self._num_open_drafts = 0
        self.num_named_blocks = self.window_start = self.store_from = 0
        self.cut_points = ()
        self.proposal, self.older_survival = NO_DRAFTS, ()
        self.num_preemptions += 1

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id!r}[{self.index}], {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens computed)"
        )
