"""What must hold after every call of the scheduler, written down a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import chain
from operator import attrgetter

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from deepinfer_core.scheduler.step_plan import StepPlan
from tests.simulation.null_executor import WINDOW, NullExecutor

_COUNTS_OF_MEMORY = attrgetter(
    "num_computed_tokens", "num_planned_tokens", "num_pending_tokens", "state_slot", "store_from", "window_start"
)
"""What is 0 for a sequence without memory."""


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
    _check_copies(plan, scheduler)


def _check_copies(plan: StepPlan, scheduler: Scheduler) -> None:
    """Loads and restores go to memory of sequences that begin in this step, snapshots to places of their own."""
    blocks, snapshots = scheduler._memory.blocks, scheduler.prefix_cache.snapshots
    slots = {entry.sequence.state_slot: entry for entry in plan.entries}
    fresh = {block_id for entry in plan.prefills for block_id in entry.sequence.block_ids}
    for load in plan.loads:
        assert load.place in (slots if load.is_slot else fresh)
        assert load.is_slot or (blocks.num_references(load.place) == 1 and load.place not in blocks._keys)
    filled = [load.place for load in plan.loads if load.is_slot] + [to for _, to in plan.restores]
    assert len(set(filled)) == len(filled)
    assert all(slots[slot].start == slots[slot].store_from > 0 == slots[slot].window_start for slot in filled)
    assert all(source in range(snapshots._first, snapshots._first + snapshots.size) for source, _ in plan.restores)
    taken = [to for _, to in plan.snapshots]
    assert len(set(taken)) == len(taken)
    assert all(snapshots.num_references(slot) == 1 and slot not in snapshots._keys for slot in taken)
    ends = [slots[source].start + slots[source].num_tokens for source, _ in plan.snapshots]
    assert not any(end % BLOCK_TOKENS for end in ends)


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


def check_state(scheduler: Scheduler, once_named: Collection[int] = ()) -> None:
    """The scheduler between two calls.

    Args:
        scheduler: All of it is looked at.
        once_named: Blocks in use that had a name; they may have lost it, with a sequence that was distrusted.
    """
    waiting, running = list(scheduler._batcher.waiting), list(scheduler._batcher.running)
    assert len(running) <= scheduler.config.max_num_seqs
    _check_order(waiting)
    _check_order(running)
    registered = chain.from_iterable(scheduler._unfinished.values())
    assert {*registered} == {*waiting, *running} == {*scheduler._deadlines}
    assert [*map(attrgetter("status"), waiting)].count(SequenceStatus.WAITING) == len(waiting)
    assert {*map(_COUNTS_OF_MEMORY, waiting)} <= {(0,) * 6}
    assert not any(map(attrgetter("block_ids"), waiting))
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
        memory.blocks,
        [b for s in holders for b in s.block_ids],
        [b for lease in leases for b in lease.block_ids],
        once_named,
    )
    _check_pool(memory.slots, [s.state_slot for s in holders], [lease.state_slot for lease in leases])
    taking = [slot for taken in scheduler._taking.values() for _, slot in taken]
    _check_pool(scheduler.prefix_cache.snapshots, taking, [])
    assert not memory.slots._keys
    assert not any(slot in scheduler.prefix_cache.snapshots._keys for slot in taking)


def check_prefetches(scheduler: Scheduler, now: float) -> None:
    """What is on its way belongs to somebody who waits, and nobody was just passed over whose time is up."""
    batcher, pending = scheduler._batcher, scheduler._batcher.prefetches._pending
    waiting = list(batcher.waiting)
    assert pending.keys() <= {*waiting}
    for sequence in waiting[: batcher.num_passed_over]:
        since = pending[sequence].since
        assert since is not None
        assert now - since < scheduler.prefix_cache._config.max_wait_s


def check_names(scheduler: Scheduler, executor: NullExecutor) -> None:
    """Whatever has a name holds what the name stands for, in each moment in which it can be found."""
    for block_id, key in scheduler._memory.blocks._keys.items():
        assert executor.contents(block_id, is_slot=False) == executor.meaning.get(key)
    for slot, key in scheduler.prefix_cache.snapshots._keys.items():
        position, tokens, first = executor.contents(slot, is_slot=True)
        assert [position, tokens] == list(executor.meaning.get(key, ()))[:2]
        assert first <= max(position + 1 - WINDOW, 0)


def _check_order(queue: list[Sequence]) -> None:
    ranks = [sequence.rank for sequence in queue]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def _check_pool(pool: BlockPool, owned: list[int], leased: list[int], once_named: Collection[int] = ()) -> None:
    """What never had a name has one owner at most, every reference is accounted for, and the rest is free."""
    shared = {block_id for block_id, count in Counter(owned).items() if count > 1}
    assert shared <= pool._keys.keys() | set(once_named)
    references = [0] * (pool._first + pool.size)
    for block_id in owned + leased:
        references[block_id] += 1
    assert not any(references[: pool._first])
    assert pool._references == references
    free = [block_id for block_id, count in enumerate(references) if block_id >= pool._first and not count]
    assert sorted(pool._free) == [block_id for block_id in free if block_id not in pool._keys]
    assert sorted(pool._kept) == [block_id for block_id in free if block_id in pool._keys]
    assert pool._named == {key: block_id for block_id, key in pool._keys.items()}
