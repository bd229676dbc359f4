"""Memory that a transfer still uses when its sequence is gone."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.leases import Lease
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence
from tests.unit.scheduler.builders import add, make_scheduler, rows, step


class SlowTransport:
    """Writes into the blocks of a sequence when told to, if its lease still stands."""

    def __init__(self, scheduler: Scheduler, sequence: Sequence, expires_at: float) -> None:
        self.lease: Lease = scheduler.leases.grant(sequence, expires_at)
        self.written: list[int] = []
        self._scheduler = scheduler

    def deliver(self) -> None:
        if self._scheduler.leases.end(self.lease):
            self.written += self.lease.block_ids


def aborted_during_a_transfer() -> tuple[Scheduler, SlowTransport]:
    scheduler = make_scheduler(num_blocks=4)
    [sequence] = add(scheduler, "first", num_prompt_tokens=200)
    step(scheduler, now=0.0)
    transport = SlowTransport(scheduler, sequence, expires_at=10.0)
    scheduler.abort("first")
    return scheduler, transport


def test_memory_of_an_aborted_sequence_is_not_reused_while_its_transfer_runs() -> None:
    scheduler, transport = aborted_during_a_transfer()
    [second] = add(scheduler, "second", num_prompt_tokens=200)

    step(scheduler, now=1.0)
    transport.deliver()

    assert len(transport.written) == 2
    assert set(transport.written).isdisjoint(second.block_ids)
    assert second.state_slot != transport.lease.state_slot


def test_acknowledged_transfer_gives_everything_back() -> None:
    scheduler, transport = aborted_during_a_transfer()
    assert scheduler.statistics().num_free_blocks == 2

    transport.deliver()

    scheduler.require_all_free()


def test_transfer_that_never_ends_gives_everything_back_when_its_time_is_over() -> None:
    scheduler, transport = aborted_during_a_transfer()

    scheduler.plan(10.0)
    transport.deliver()

    assert transport.written == []
    scheduler.require_all_free()


def test_sequence_that_needs_leased_memory_waits_and_then_runs() -> None:
    scheduler, transport = aborted_during_a_transfer()
    add(scheduler, "large", num_prompt_tokens=500)

    before = scheduler.plan(1.0)
    transport.deliver()

    assert before is None
    assert rows(step(scheduler, now=2.0)) == [("large", 0, 500)]


def test_open_lease_counts_as_a_leak_at_the_end() -> None:
    scheduler, _ = aborted_during_a_transfer()

    with pytest.raises(InternalError, match="2 blocks were never released"):
        scheduler.require_all_free()


def test_leased_sequence_may_be_preempted_and_computed_in_other_blocks() -> None:
    scheduler = make_scheduler(num_blocks=4, headroom_blocks=0)
    _, b = add(scheduler, "a", "b", num_prompt_tokens=127, max_tokens=50)
    step(scheduler)
    lease = scheduler.leases.grant(b, 100.0)
    add(scheduler, "c", "d", num_prompt_tokens=100, max_tokens=2)

    while scheduler.has_unfinished:
        step(scheduler)
        assert b.block_ids[:1] == [*lease.block_ids] or set(b.block_ids).isdisjoint(lease.block_ids)

    assert scheduler.leases.end(lease)
    scheduler.require_all_free()
