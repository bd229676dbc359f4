"""Admission of sequences whose beginning is in the prefix cache, when memory is short."""

from __future__ import annotations

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence, SequenceStatus
from tests.unit.scheduler.builders import EXACT, ROOT, TOKEN, Tier, make_scheduler, planned, rows, run, step


def tokens(num_blocks: int, more: int, *, begins: int = 1) -> list[int]:
    """So many whole blocks of tokens that begin at one, and some more."""
    return list(range(begins, begins + num_blocks * BLOCK_TOKENS + more))


def queue(scheduler: Scheduler, request_id: str, prompt: list[int], max_tokens: int = 50) -> Sequence:
    """Add a sequence that may use the prefix cache."""
    sequence = Sequence(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, cache_root=ROOT)
    scheduler.add(sequence)
    return sequence


def test_blocks_that_others_use_need_no_memory() -> None:
    scheduler = make_scheduler(5, prefix_cache=EXACT, headroom_blocks=0, max_prefill_steps_in_a_row=9)
    queue(scheduler, "a", tokens(3, 9))
    step(scheduler)
    step(scheduler)
    b = queue(scheduler, "b", tokens(3, 20))

    plan = step(scheduler)

    assert rows(plan) == [("b", 384, 20)]
    assert b.num_preemptions == 0
    assert scheduler.statistics().num_free_blocks == 0


def test_free_blocks_of_a_hit_are_memory_that_it_needs() -> None:
    scheduler = make_scheduler(4, prefix_cache=EXACT, headroom_blocks=0)
    run(scheduler, "a", tokens(2, 9))
    queue(scheduler, "other", tokens(0, 60, begins=900))
    queue(scheduler, "b", tokens(2, 9))
    queue(scheduler, "c", tokens(0, 60, begins=700))

    plan = step(scheduler)

    assert rows(plan) == [("other", 0, 60), ("b", 256, 9)]
    assert scheduler.statistics().num_free_blocks == 0


def test_taking_new_blocks_does_not_evict_those_of_the_hit() -> None:
    scheduler = make_scheduler(4, prefix_cache=EXACT, headroom_blocks=0)
    run(scheduler, "a", tokens(2, 9))
    kept = {scheduler._memory.blocks.find(key) for key in scheduler._memory.blocks._named}

    b = queue(scheduler, "b", tokens(2, 200))
    step(scheduler)

    assert {*b.block_ids[:2]} == kept
    assert len({*b.block_ids}) == 4


def test_head_room_counts_for_hits_too() -> None:
    scheduler = make_scheduler(5, prefix_cache=EXACT, headroom_blocks=2)
    queue(scheduler, "a", tokens(2, 9), max_tokens=300)
    step(scheduler)
    step(scheduler)
    b = queue(scheduler, "b", tokens(2, 20))

    step(scheduler)

    assert b.status is SequenceStatus.WAITING  # 2 blocks are free, of which it would take 1


def test_preempted_sequence_finds_what_it_left() -> None:
    scheduler = make_scheduler(6, prefix_cache=EXACT, headroom_blocks=0)
    a, b = queue(scheduler, "a", tokens(2, 120)), queue(scheduler, "b", tokens(2, 120, begins=1000))
    c = queue(scheduler, "c", tokens(0, 9, begins=2000))
    while not b.num_preemptions:
        step(scheduler)
    while not a.is_finished:
        plan = step(scheduler)
    while b.status is SequenceStatus.WAITING:
        plan = step(scheduler)

    starts = {request_id: start for request_id, start, _ in rows(plan)}
    assert starts["b"] >= 128
    assert c.num_preemptions == 0 or c.arrival > b.arrival


def test_hit_that_breaks_when_it_is_read_waits_for_the_memory_that_it_needs() -> None:
    scheduler, tier = make_scheduler(4, prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=1)), Tier()
    scheduler.prefix_cache.attach(tier)
    a = queue(scheduler, "a", tokens(2, 9), max_tokens=20)
    step(scheduler)
    step(scheduler)
    tier.save(scheduler)
    tier.broken.update(tier.payloads)
    evictor = Sequence(request_id="e", prompt_token_ids=tokens(0, 9), max_tokens=1)
    scheduler.prefix_cache.drop(*scheduler.prefix_cache.snapshots.allocate(1))  # its state is outside only
    b = queue(scheduler, "b", tokens(2, 20))
    scheduler.add(evictor)

    plans = [step(scheduler) for _ in range(5)]

    assert {row for plan in plans for row, *_ in rows(plan)} == {"a"}
    while not a.is_finished:
        step(scheduler)
    assert rows(step(scheduler))[0] == ("b", 0, 276)
    assert b.num_preemptions == 0


def test_recompute_behind_a_hit_gets_rows_in_the_step_that_admits_it() -> None:
    """A step that fails starts over those who are in it, and with them what it should have restored."""
    scheduler = make_scheduler(
        8, prefix_cache=EXACT, headroom_blocks=0, step_policy="mixed", chunked_prefill=False, max_num_batched_tokens=200
    )
    run(scheduler, "a", tokens(1, 60), max_tokens=80)
    queue(scheduler, "d", tokens(0, 9, begins=900))
    step(scheduler)
    preempted = queue(scheduler, "b", tokens(1, 60), max_tokens=400)
    preempted.token_ids += [
        TOKEN
    ] * 268  # as if it had run before: 200 tokens behind the hit, for which 199 rows are free

    plan = planned(scheduler)

    assert rows(plan) == [("d", 9, 1), ("b", 256, 128)]
    assert len(plan.restores) == 1
    scheduler.cancel(plan)
    assert (preempted.num_computed_tokens, preempted.status) == (0, SequenceStatus.WAITING)
