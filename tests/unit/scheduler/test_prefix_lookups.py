"""Looking up the same waiting sequence costs nothing until something changes, and what is distrusted is not found."""

from __future__ import annotations

from collections import Counter

import pytest

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import FinishReason, Sequence
from deepinfer_core.scheduler.step_plan import Outcome, StepPlan
from tests.unit.scheduler.builders import EXACT, ROOT, Tier, make_scheduler, planned, rows, run, step


def tokens(num_blocks: int, more: int = 0, *, begins: int = 1) -> list[int]:
    """So many whole blocks of tokens that begin at one, and some more."""
    return list(range(begins, begins + num_blocks * BLOCK_TOKENS + more))


def queue(scheduler: Scheduler, request_id: str, prompt: list[int], *, max_tokens: int = 9) -> Sequence:
    """A sequence that waits."""
    sequence = Sequence(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, cache_root=ROOT)
    scheduler.add(sequence)
    return sequence


@pytest.fixture
def crowded() -> Scheduler:
    """A scheduler whose memory one sequence uses, while another waits that shares four blocks with a former one."""
    scheduler = make_scheduler(9, prefix_cache=EXACT, headroom_blocks=0)
    run(scheduler, "former", tokens(4, 9))
    queue(scheduler, "running", tokens(3, 9, begins=2000), max_tokens=200)
    step(scheduler)
    step(scheduler)
    queue(scheduler, "waiting", tokens(7, 9))
    return scheduler


def count_finds(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Counts how often each name of a block is looked up."""
    blocks, counts = scheduler._memory.blocks, Counter[bytes]()
    find = blocks.find
    monkeypatch.setattr(blocks, "find", lambda key: (counts.update([key]), find(key))[1])
    return counts


def test_waiting_sequence_is_looked_up_once(crowded: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_finds(crowded, monkeypatch)

    for _ in range(20):
        assert rows(step(crowded))[0][0] == "running"

    waiting = crowded._batcher.waiting.first
    assert [counts[key] for key in waiting.block_keys] == [1, 1, 1, 1, 1, 0, 0]


def test_look_up_begins_anew_when_a_block_of_it_is_given_out(
    crowded: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = crowded._batcher.waiting.first
    before = crowded.prefix_cache.find(waiting)
    counts = count_finds(crowded, monkeypatch)

    crowded._memory.blocks.allocate(crowded._memory.blocks.num_free)

    assert (before.num_found, crowded.prefix_cache.find(waiting).num_found) == (4, 0)
    assert sum(counts.values()) == 1


def test_look_up_sees_a_block_and_a_snapshot_that_were_named_since() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    waiting = Sequence(request_id="w", prompt_token_ids=tokens(3, 9), max_tokens=9, cache_root=ROOT)

    found = [scheduler.prefix_cache.find(waiting).resume]
    for num_blocks in (1, 2, 3):
        run(scheduler, f"{num_blocks}", tokens(num_blocks, 9))
        found.append(scheduler.prefix_cache.find(waiting).resume)

    assert found == [0, 128, 256, 384]


def test_look_up_sees_tokens_that_came_since() -> None:
    scheduler = make_scheduler(prefix_cache=EXACT)
    run(scheduler, "a", tokens(2, 9))
    waiting = Sequence(request_id="w", prompt_token_ids=tokens(1, 100), max_tokens=99, cache_root=ROOT)
    before = scheduler.prefix_cache.find(waiting)

    waiting.token_ids[:] = tokens(2, 9)

    assert (before.num_found, scheduler.prefix_cache.find(waiting).num_found) == (1, 2)


def test_outer_tiers_are_asked_now_and_then_because_they_change_unseen() -> None:
    scheduler, tier = make_scheduler(prefix_cache=EXACT), Tier()
    scheduler.prefix_cache.attach(tier)
    run(scheduler, "a", tokens(2, 9))
    saves = scheduler.prefix_cache.take_saves()
    scheduler._memory.blocks.allocate(scheduler._memory.blocks.num_free)
    waiting = Sequence(request_id="w", prompt_token_ids=tokens(2, 9), max_tokens=9, cache_root=ROOT)
    tier.num_questions = 0

    first = [scheduler.prefix_cache.find(waiting).num_found for _ in range(8)]
    tier.payloads.update((save.key, save.key) for save in saves)  # a copy has arrived
    later = [scheduler.prefix_cache.find(waiting).num_found for _ in range(32)]

    assert (set(first), later[-1]) == ({0}, 2)
    assert tier.num_questions < 10


def test_payload_that_is_not_there_is_asked_for_again_at_once() -> None:
    scheduler, tier = make_scheduler(prefix_cache=EXACT), Tier()
    scheduler.prefix_cache.attach(tier)
    run(scheduler, "a", tokens(2, 9))
    tier.save(scheduler)
    scheduler._memory.blocks.allocate(scheduler._memory.blocks.num_free)
    waiting = Sequence(request_id="w", prompt_token_ids=tokens(2, 9), max_tokens=9, cache_root=ROOT)
    promised = scheduler.prefix_cache.find(waiting)

    tier.payloads.clear()
    read, *_ = scheduler.prefix_cache.load(waiting, promised)

    assert (promised.resume, read.resume, scheduler.prefix_cache.find(waiting).num_found) == (256, 0, 0)


def test_what_a_distrusted_sequence_read_or_wrote_is_found_nowhere() -> None:
    scheduler, tier = make_scheduler(prefix_cache=EXACT, max_num_batched_tokens=128), Tier()
    scheduler.prefix_cache.attach(tier)
    run(scheduler, "sound", tokens(1, 9))
    tier.save(scheduler)
    failing = queue(scheduler, "failing", tokens(3, 9))
    while failing.num_uncomputed_tokens > BLOCK_TOKENS:
        step(scheduler)
    plan = planned(scheduler)
    num_named = scheduler._memory.blocks.num_named

    scheduler.apply(plan, [Outcome(token_ids=(), finish_reason=FinishReason.ERROR)])
    scheduler.prefix_cache.distrust(failing)

    assert (num_named, scheduler._memory.blocks.num_named, scheduler.prefix_cache.snapshots.num_named) == (3, 0, 0)
    assert tier.payloads == {}
    assert scheduler.prefix_cache.take_saves() == []
    assert rows(run_plan(scheduler, tokens(3, 9))) == [("again", 0, 128)]


def run_plan(scheduler: Scheduler, prompt: list[int]) -> StepPlan:
    """The first step of a sequence with this prompt."""
    queue(scheduler, "again", prompt)
    return planned(scheduler)
