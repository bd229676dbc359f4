"""What the prefix cache finds, names and keeps."""

from __future__ import annotations

import pytest

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import Outcome
from tests.unit.scheduler.builders import (
    BOUNDED,
    EXACT,
    ROOT,
    Tier,
    drafts,
    make_scheduler,
    outcomes,
    planned,
    rows,
    run,
    step,
)


def prompt(num_blocks: int, more: int = 0, *, begins: int = 1) -> list[int]:
    """So many whole blocks of tokens that begin at one, and some more."""
    return list(range(begins, begins + num_blocks * BLOCK_TOKENS + more))


def queued(scheduler: Scheduler, tokens: list[int], *, root: bytes = ROOT, max_tokens: int = 9) -> Sequence:
    """A sequence that waits."""
    sequence = Sequence(request_id="q", prompt_token_ids=tokens, max_tokens=max_tokens, cache_root=root)
    scheduler.add(sequence)
    return sequence


def test_exact_hit_begins_behind_the_last_whole_block_with_a_state() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", prompt(2, 10))
    sequence = queued(scheduler, prompt(2, 50))

    hit = scheduler.prefix_cache.find(sequence)
    plan = planned(scheduler)

    assert (hit.num_blocks, hit.resume, hit.window_start, hit.store_from) == (2, 256, 0, 256)
    assert list(hit.block_ids.values()) == sequence.block_ids[:2]
    assert rows(plan) == [("q", 256, 50)]
    assert plan.restores == ((scheduler.prefix_cache.snapshots.find(hit.snapshot or b""), sequence.state_slot),)
    assert scheduler.prefix_cache.counters.num_hit_tokens == 256


def test_bounded_hit_computes_the_last_window_again_and_stores_behind_the_hit() -> None:
    scheduler = make_scheduler(prefix_cache=BOUNDED)
    run(scheduler, "a", prompt(3, 10))
    queued(scheduler, prompt(3, 50))

    [entry] = planned(scheduler).entries

    assert (entry.start, entry.num_tokens, entry.window_start, entry.store_from) == (256, 178, 256, 384)


def test_bounded_hit_keeps_the_tokens_that_a_truncated_prompt_needs() -> None:
    scheduler = make_scheduler(prefix_cache=PrefixCacheConfig(mode="bounded", num_snapshots=4, keep_tokens=140))
    run(scheduler, "a", prompt(3))
    queued(scheduler, prompt(3, 1))

    plan = planned(scheduler)

    assert rows(plan) == [("q", 128, 257)]  # 385 - 140 = 245, and blocks begin at 128
    assert (plan.restores, plan.snapshots) == ((), ())


def test_bounded_hit_of_a_window_or_less_is_no_hit() -> None:
    scheduler = make_scheduler(prefix_cache=BOUNDED)
    run(scheduler, "a", prompt(1, 10))

    assert scheduler.prefix_cache.find(queued(scheduler, prompt(1, 50))).resume == 0


def test_one_token_at_least_is_computed() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", prompt(2))

    queued(scheduler, prompt(2))

    assert rows(planned(scheduler)) == [("q", 128, 128)]


@pytest.mark.parametrize(
    ("tokens", "root"),
    [
        (prompt(2, 50, begins=2), ROOT),
        ([*prompt(0, 100), 0, *prompt(2)], ROOT),
        (prompt(2, 50), b"another 16 bytes"),
        (prompt(2, 50), b""),
    ],
    ids=["other beginning", "one token differs", "other root", "without root"],
)
def test_what_differs_is_not_found(tokens: list[int], root: bytes) -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", prompt(2, 10))

    assert scheduler.prefix_cache.find(queued(scheduler, tokens, root=root)).num_found == 0


def test_nothing_is_found_and_nothing_is_named_while_it_is_off() -> None:
    scheduler = make_scheduler()
    run(scheduler, "a", prompt(2, 10))

    assert scheduler.prefix_cache.find(queued(scheduler, prompt(2, 10))).num_found == 0


def test_output_is_found_by_the_next_turn() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    first = run(scheduler, "a", prompt(1, 100), max_tokens=40)

    queued(scheduler, [*first.token_ids, 1, 2, 3])

    assert rows(planned(scheduler)) == [("q", 256, 15)]


def test_block_gets_its_name_when_the_step_that_fills_it_has_run() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    queued(scheduler, prompt(2, 10))
    blocks = scheduler._memory.blocks
    first = planned(scheduler)
    second = planned(scheduler)

    assert (rows(first), rows(second)) == ([("q", 0, 256)], [("q", 256, 10)])
    assert blocks.num_named == 0
    scheduler.apply(first, [])
    assert blocks.num_named == 2


def test_nothing_of_a_step_that_failed_is_named() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    queued(scheduler, prompt(2, 10))

    scheduler.cancel(planned(scheduler))

    assert scheduler._memory.blocks.num_named == 0
    assert scheduler.prefix_cache.snapshots.num_named == 0
    scheduler.abort("q")
    scheduler.require_all_free()


def test_nothing_of_a_row_that_failed_is_named() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    queued(scheduler, prompt(0, 127))
    step(scheduler)
    plan = planned(scheduler)

    scheduler.apply(plan, [Outcome(token_ids=(), finish_reason=FinishReason.ERROR)])

    assert len(plan.snapshots) == 1
    assert (scheduler._memory.blocks.num_named, scheduler.prefix_cache.snapshots.num_named) == (0, 0)
    scheduler.require_all_free()


def test_accepted_drafts_are_named_with_their_tokens() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    sequence = queued(scheduler, prompt(0, 126))
    step(scheduler)
    sequence.proposal = drafts(3)
    plan = planned(scheduler)

    scheduler.apply(plan, [Outcome(token_ids=(5, 6, 8))])

    assert rows(plan) == [("q", 126, 4)]
    assert scheduler._memory.blocks.num_named == 1
    assert scheduler.prefix_cache.find(sequence).num_found == 1


def test_drafts_behind_the_end_are_not_named() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    sequence = Sequence(request_id="q", prompt_token_ids=prompt(0, 125), max_tokens=9, eos_token_id=5, cache_root=ROOT)
    scheduler.add(sequence)
    step(scheduler)
    sequence.proposal = drafts(3)

    scheduler.apply(planned(scheduler), [Outcome(token_ids=(5, 6, 8, 9))])

    assert sequence.is_finished
    assert scheduler._memory.blocks.num_named == 0


def test_prefill_stops_at_the_last_block_boundary_and_where_others_part() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", prompt(3, 10))
    queued(scheduler, [*prompt(1, 100), *prompt(2, begins=500)])

    plans = [step(scheduler) for _ in range(3)]

    assert [rows(plan) for plan in plans] == [[("q", 0, 128)], [("q", 128, 256)], [("q", 384, 100)]]
    assert [len(plan.snapshots) for plan in plans] == [1, 1, 0]


def test_prefill_stops_where_others_part_behind_a_state_too() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", prompt(1, 10))
    run(scheduler, "b", prompt(3, 10))
    queued(scheduler, [*prompt(2, 100), *prompt(1, begins=500)])

    plans = [step(scheduler) for _ in range(3)]

    assert [rows(plan) for plan in plans] == [[("q", 128, 128)], [("q", 256, 128)], [("q", 384, 100)]]


def test_no_snapshot_is_taken_twice() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    queued(scheduler, prompt(1, 10))
    step(scheduler)
    run(scheduler, "b", prompt(1, 20))

    assert scheduler.prefix_cache.counters.num_snapshots == 1


def test_of_two_snapshots_of_the_same_tokens_one_is_kept() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    for request_id in "ab":
        scheduler.add(Sequence(request_id=request_id, prompt_token_ids=prompt(1, 9), max_tokens=1, cache_root=ROOT))

    plan = step(scheduler)

    assert len(plan.snapshots) == 2
    assert scheduler.prefix_cache.snapshots.num_named == 1
    assert scheduler.prefix_cache.snapshots.num_free == 4


def test_no_snapshot_of_a_window_that_is_not_whole() -> None:
    scheduler = make_scheduler(prefix_cache=PrefixCacheConfig(mode="bounded", num_snapshots=1, window_tokens=200))
    run(scheduler, "a", prompt(3, 9))
    run(scheduler, "b", prompt(1, begins=500))  # takes the only snapshot
    queued(scheduler, prompt(3, 9))

    plans = [step(scheduler) for _ in range(2)]

    assert rows(plans[0]) == [("q", 128, 256)]
    assert plans[0].entries[0].window_start == 128
    assert len(plans[0].snapshots) == 1  # 384 = 128 + 256: whole
    scheduler.abort("q")
    [entry] = plans[0].entries
    short = type(entry)(**{name: getattr(entry, name) for name in type(entry).__slots__} | {"num_tokens": 128})
    assert scheduler.prefix_cache.snapshot_slot(short) is None


def test_without_a_free_place_there_is_no_snapshot() -> None:
    scheduler = make_scheduler(prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=1))
    for request_id in "ab":
        tokens = prompt(1, 9, begins=ord(request_id))
        scheduler.add(Sequence(request_id=request_id, prompt_token_ids=tokens, max_tokens=1, cache_root=ROOT))

    assert len(step(scheduler).snapshots) == 1


def test_snapshot_that_was_used_is_evicted_last() -> None:
    scheduler = make_scheduler(prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=2))
    run(scheduler, "a", prompt(1, 9, begins=1000))
    run(scheduler, "b", prompt(1, 9, begins=2000))
    run(scheduler, "a", prompt(1, 20, begins=1000))

    run(scheduler, "c", prompt(1, 9, begins=3000))

    found = [scheduler.prefix_cache.find(queued_copy(scheduler, begins)).resume for begins in (1000, 2000, 3000)]
    assert found == [128, 0, 128]


def queued_copy(scheduler: Scheduler, begins: int) -> Sequence:
    """A waiting sequence that is looked at and given up."""
    sequence = queued(scheduler, prompt(1, 30, begins=begins))
    scheduler.abort("q")
    return sequence


def test_memory_of_a_prefix_is_shared_while_both_run() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", prompt(2, 9))
    for request_id in "bc":
        scheduler.add(Sequence(request_id=request_id, prompt_token_ids=prompt(2, 9), max_tokens=9, cache_root=ROOT))

    plan = step(scheduler)
    b, c = (entry.sequence for entry in plan.entries)

    assert b.block_ids[:2] == c.block_ids[:2]
    assert b.block_ids[2] != c.block_ids[2]
    assert scheduler.statistics().num_free_blocks == 16 - 4
    scheduler.abort("b")
    assert [scheduler._memory.blocks.num_references(block_id) for block_id in c.block_ids] == [1, 1, 1]
    scheduler.abort("c")
    scheduler.require_all_free()


def test_snapshot_that_is_taken_counts_as_leak_until_its_step_ends() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    queued(scheduler, prompt(1, 9))
    plan = planned(scheduler)

    assert scheduler.prefix_cache.snapshots.num_free == 3
    scheduler.apply(plan, outcomes(plan))
    scheduler.abort("q")
    scheduler.require_all_free()


def with_tier(num_blocks: int = 16) -> tuple[Scheduler, Tier]:
    """A scheduler that ran a prompt of two blocks, which are only in an outer tier now."""
    scheduler, tier = make_scheduler(num_blocks, prefix_cache=EXACT, headroom_blocks=0), Tier()
    scheduler.prefix_cache.attach(tier)
    run(scheduler, "a", prompt(2, 9))
    tier.save(scheduler)
    for number in range(num_blocks * 2):  # evict all that is on the device
        run(scheduler, "b", prompt(2, 9, begins=1000 * (1 + number)))
    scheduler.prefix_cache.take_saves()
    return scheduler, tier


def test_what_was_named_may_be_saved_once() -> None:
    scheduler, tier = make_scheduler(prefix_cache=EXACT), Tier()
    scheduler.prefix_cache.attach(tier)
    run(scheduler, "a", prompt(2, 9))

    saves = tier.save(scheduler)
    run(scheduler, "b", prompt(2, 20))

    assert [save.is_slot for save in saves] == [False, False, True]
    assert tier.save(scheduler) == []


def test_what_lost_its_name_is_not_saved() -> None:
    scheduler, tier = make_scheduler(2, prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=1)), Tier()
    scheduler.prefix_cache.attach(tier)
    run(scheduler, "a", prompt(1, 9))
    second = run(scheduler, "b", prompt(1, 9, begins=500))

    saves = scheduler.prefix_cache.take_saves()

    found = scheduler._memory.blocks.find, scheduler.prefix_cache.snapshots.find
    assert [found[save.is_slot](save.key) for save in saves] == [save.place for save in saves]
    assert {save.key for save in saves} >= {*second.block_keys}
    assert len(saves) == scheduler._memory.blocks.num_named + 1


def test_hit_in_an_outer_tier_is_loaded_and_found_on_the_device_from_then_on() -> None:
    scheduler, tier = with_tier()
    queued(scheduler, prompt(2, 50))

    plan = step(scheduler)
    again = Sequence(request_id="r", prompt_token_ids=prompt(2, 50), max_tokens=1, cache_root=ROOT)

    [entry] = plan.entries
    blocks, slot = entry.sequence.block_ids, entry.sequence.state_slot
    assert [(load.place, load.is_slot) for load in plan.loads] == [(blocks[0], False), (blocks[1], False), (slot, True)]
    assert {load.payload for load in plan.loads} <= tier.payloads.keys()
    assert (plan.restores, rows(plan)) == ((), [("q", 256, 50)])
    assert scheduler.prefix_cache.find(again).block_ids == dict(enumerate(blocks[:2]))
    assert scheduler.prefix_cache.counters.num_outer_tokens == 256
    assert scheduler.prefix_cache.take_saves() == []


def test_loaded_blocks_of_a_step_that_failed_are_not_found() -> None:
    scheduler, _ = with_tier()
    queued(scheduler, prompt(2, 50))

    scheduler.cancel(planned(scheduler))

    assert scheduler.prefix_cache.find(next(iter(scheduler._batcher.waiting))).block_ids == {}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_payload_that_cannot_be_read_is_no_hit(number: int) -> None:
    scheduler, tier = with_tier()
    tier.broken.add(list(tier.payloads)[number])
    queued(scheduler, prompt(2, 50))

    plan = planned(scheduler)

    assert (plan.loads, plan.restores, rows(plan)) == ((), (), [("q", 0, 306)])
