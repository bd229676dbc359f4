"""What must hold after every call of the scheduler, written down a second time."""

from __future__ import annotations

from itertools import chain, pairwise

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from deepinfer_core.scheduler.step_plan import StepKind, StepPlan


def check_plan(plan: StepPlan, scheduler: Scheduler) -> None:
    """One plan, before it runs."""
    config, running = scheduler.config, scheduler._batcher.running
    assert plan.entries
    assert plan.num_tokens <= config.max_num_batched_tokens
    assert len({entry.sequence for entry in plan.entries}) == len(plan.entries)
    for entry in plan.entries:
        sequence, end = entry.sequence, entry.start + entry.num_tokens
        assert sequence in running
        assert sequence.in_flight
        assert entry.num_tokens >= 1
        assert entry.start == sequence.num_computed_tokens
        assert end <= len(sequence.block_ids) * BLOCK_TOKENS
        assert end <= scheduler.max_model_len
        assert entry.samples == (end >= sequence.num_tokens)
    if plan.kind is StepKind.DECODE:
        decoding = [sequence for sequence in running if sequence.status is SequenceStatus.DECODING]
        assert [entry.sequence for entry in plan.entries] == decoding
    else:
        assert all(entry.sequence.status is SequenceStatus.PREFILLING for entry in plan.entries)


def check_in_flight(plan: StepPlan, scheduler: Scheduler) -> None:
    """A plan while it runs: its memory is nobody else's, even if its sequences have ended."""
    for entry in plan.entries:
        assert entry.start + entry.num_tokens <= len(entry.sequence.block_ids) * BLOCK_TOKENS
        assert all(scheduler._memory.blocks.num_references(block_id) for block_id in entry.sequence.block_ids)
        assert scheduler._memory.slots.num_references(entry.sequence.state_slot)


def check_state(scheduler: Scheduler) -> None:
    """The scheduler between two steps."""
    waiting, running = list(scheduler._batcher.waiting), list(scheduler._batcher.running)
    assert len(running) <= scheduler.config.max_num_seqs
    _check_order(waiting)
    _check_order(running)
    registered = chain.from_iterable(scheduler._unfinished.values())
    assert {*registered} == {*waiting, *running} == {*scheduler._deadlines}
    for sequence in waiting:
        assert sequence.status is SequenceStatus.WAITING
        assert (sequence.num_computed_tokens, sequence.block_ids, sequence.state_slot) == (0, [], 0)
    for sequence in running:
        assert 0 <= sequence.num_computed_tokens <= len(sequence.block_ids) * BLOCK_TOKENS
        assert sequence.num_uncomputed_tokens >= 1
        assert sequence.status in (SequenceStatus.PREFILLING, SequenceStatus.DECODING)
        assert sequence.status is SequenceStatus.PREFILLING or sequence.num_uncomputed_tokens == 1
    memory, leases = scheduler._memory, scheduler.leases._open
    _check_pool(
        memory.blocks, [b for s in running for b in s.block_ids], [b for lease in leases for b in lease.block_ids]
    )
    _check_pool(memory.slots, [s.state_slot for s in running], [lease.state_slot for lease in leases])


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
