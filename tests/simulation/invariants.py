"""What must hold after every call of the scheduler, written down a second time."""

from __future__ import annotations

from itertools import chain, pairwise

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from deepinfer_core.scheduler.step_plan import StepPlan


def check_plan(plan: StepPlan, scheduler: Scheduler) -> None:
    """One plan, before it runs."""
    config, running = scheduler.config, scheduler._batcher.running
    assert plan.entries
    assert plan.num_tokens <= config.max_num_batched_tokens
    assert len({entry.sequence for entry in plan.entries}) == len(plan.entries)
    for entry in plan.entries:
        sequence, end = entry.sequence, entry.start + entry.num_tokens
        assert sequence in running
        assert sequence.num_steps_in_flight in (1, 2)
        assert entry.num_tokens >= 1
        assert entry.holds_memory
        assert end <= len(sequence.block_ids) * BLOCK_TOKENS
        assert end <= scheduler.max_model_len
        assert entry.is_pending == (entry.start == sequence.num_tokens)
        assert entry.start <= sequence.num_tokens
        if sequence.num_steps_in_flight == 1:
            assert entry.start == sequence.num_computed_tokens
            assert not entry.is_pending
        if entry.samples:
            assert end >= sequence.num_expected_tokens - 1 >= entry.start
        else:
            assert end < sequence.num_expected_tokens
    decoding = [sequence for sequence in running if sequence.status is SequenceStatus.DECODING]
    planned = {entry.sequence for entry in plan.entries if entry.samples}
    if plan.decodes:
        ends = [s for s in decoding if s not in planned]
        assert all(s.has_open_drafts or s.num_expected_tokens >= s.max_num_tokens for s in ends)
    assert all(entry.num_tokens == 1 or not entry.is_pending for entry in plan.decodes)
    assert all(entry.is_prefill and not entry.is_pending for entry in plan.prefills)
    assert not any(entry.is_prefill for entry in plan.decodes)


def check_in_flight(plan: StepPlan, scheduler: Scheduler) -> None:
    """A plan while it runs: its memory is nobody else's, even if its sequences have ended.

    One that was preempted for a later step has given its memory to that one, which runs after this.
    """
    for entry in plan.entries:
        if not entry.holds_memory:
            continue
        assert entry.start + entry.num_tokens <= len(entry.sequence.block_ids) * BLOCK_TOKENS
        assert all(scheduler._memory.blocks.num_references(block_id) for block_id in entry.sequence.block_ids)
        assert scheduler._memory.slots.num_references(entry.sequence.state_slot)


def check_state(scheduler: Scheduler) -> None:
    """The scheduler between two calls."""
    waiting, running = list(scheduler._batcher.waiting), list(scheduler._batcher.running)
    assert len(running) <= scheduler.config.max_num_seqs
    _check_order(waiting)
    _check_order(running)
    registered = chain.from_iterable(scheduler._unfinished.values())
    assert {*registered} == {*waiting, *running} == {*scheduler._deadlines}
    for sequence in waiting:
        assert sequence.status is SequenceStatus.WAITING
        assert (sequence.num_computed_tokens, sequence.block_ids, sequence.state_slot) == (0, [], 0)
        assert (sequence.num_planned_tokens, sequence.num_pending_tokens) == (0, 0)
    for sequence in running:
        assert 0 <= sequence.num_computed_tokens <= len(sequence.block_ids) * BLOCK_TOKENS
        assert sequence.num_computed_tokens <= sequence.num_planned_tokens
        assert sequence.num_uncomputed_tokens >= 1
        assert sequence.status in (SequenceStatus.PREFILLING, SequenceStatus.DECODING)
        assert sequence.status is SequenceStatus.PREFILLING or sequence.num_uncomputed_tokens == 1
        if not sequence.num_steps_in_flight:
            assert sequence.num_computed_tokens == sequence.num_planned_tokens
            assert sequence.num_pending_tokens == 0
    memory, leases = scheduler._memory, scheduler.leases._open
    ended = {entry.sequence for plan in scheduler._in_flight for entry in plan.entries if entry.sequence.is_finished}
    holders = [*running, *(sequence for sequence in ended if sequence.block_ids)]
    _check_pool(
        memory.blocks, [b for s in holders for b in s.block_ids], [b for lease in leases for b in lease.block_ids]
    )
    _check_pool(memory.slots, [s.state_slot for s in holders], [lease.state_slot for lease in leases])


def _check_order(queue: list[Sequence]) -> None:
    assert all(one.rank < other.rank for one, other in pairwise(queue))


def _check_pool(pool: BlockPool, owned: list[int], leased: list[int]) -> None:
    """Nothing has two owners, every reference is accounted for, and the rest is free."""
    assert len(set(owned)) == len(owned)
    references = [0] * (pool.size + 1)
    for block_id in owned + leased:
        references[block_id] += 1
    assert references[0] == 0
    assert pool._references == references
    assert sorted(pool._free) == [block_id for block_id, count in enumerate(references) if block_id and not count]
