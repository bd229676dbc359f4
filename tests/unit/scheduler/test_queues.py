"""Sorted queues."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.scheduler.queues import SortedQueue, by_deadline, by_rank
from deepinfer_core.scheduler.sequence import Sequence
from tests.unit.scheduler.builders import make_sequence


def ranked(*ranks: int) -> list[Sequence]:
    sequences = [make_sequence(f"r{rank}") for rank in ranks]
    for sequence, rank in zip(sequences, ranks, strict=True):
        sequence.rank = (rank,)
    return sequences


def test_order_is_by_key_whatever_the_order_of_adding() -> None:
    queue = SortedQueue(by_rank)

    for sequence in ranked(3, 1, 2):
        queue.add(sequence)

    assert [sequence.request_id for sequence in queue] == ["r1", "r2", "r3"]
    assert (queue.first.request_id, queue.last.request_id) == ("r1", "r3")


def test_removing_from_the_middle_leaves_the_others() -> None:
    queue = SortedQueue(by_rank)
    sequences = ranked(1, 2, 3)
    for sequence in sequences:
        queue.add(sequence)

    queue.remove(sequences[1])

    assert list(queue) == [sequences[0], sequences[2]]
    assert sequences[1] not in queue


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_removing_what_is_not_there_breaks_an_invariant(rank: int) -> None:
    queue = SortedQueue(by_rank)
    here, other = ranked(1, rank)
    queue.add(here)

    with pytest.raises(InternalError, match="is not in the queue"):
        queue.remove(other)


def test_no_deadline_comes_last_and_equal_deadlines_by_arrival() -> None:
    queue = SortedQueue(by_deadline)
    fields = [("never", 0, float("inf")), ("second", 2, 5.0), ("first", 1, 5.0)]
    for request_id, arrival, deadline in fields:
        sequence = make_sequence(request_id, deadline=deadline)
        sequence.arrival = arrival
        queue.add(sequence)

    assert [sequence.request_id for sequence in queue] == ["first", "second", "never"]
