"""Rows that are worked on piece by piece: the pieces cover all rows, fit, and give the same bits."""

from __future__ import annotations

import pytest

from deepinfer_cuda.expert_room import ExpertRoom
from deepinfer_cuda.scratch import SCRATCH_BYTES, piece_bytes, row_pieces
from tests.cuda.interpreted import interpreted_lines

RELEASED = ExpertRoom(hidden=5120, inner=2304, slots=6)
ROWS = (0, 1, 255, 256, 257, 2048, 8192, 8193, 16384, 100_000)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("bytes_per_row", [0, 1, 77_824, 10 << 20])
def test_pieces_cover_the_rows_in_order_and_fit(num_rows: int, bytes_per_row: int) -> None:
    pieces = row_pieces(num_rows, bytes_per_row)

    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(num_rows))
    largest = max((piece.stop - piece.start for piece in pieces), default=0)
    assert largest * bytes_per_row <= piece_bytes(num_rows, bytes_per_row)
    assert largest <= 256 or largest * bytes_per_row <= SCRATCH_BYTES


@pytest.mark.parametrize("num_rows", ROWS)
def test_expert_layer_takes_at_most_half_a_gibibyte(num_rows: int) -> None:
    """A row takes 10 KiB in bf16 and 7 x 4.5 KiB of inner rows; its 7 results would take 70 KiB."""
    taken = 0
    for piece in RELEASED.pieces(num_rows):
        rows = piece.stop - piece.start
        results = 2 * 7 * rows * RELEASED.channels_at_once(rows)
        taken = max(taken, rows * (2 * 5120 + 7 * 2 * 2304 + 4 * 6) + results + 12 * (6 * rows // 16 + 384))

    assert taken <= RELEASED.workspace(num_rows, 384) <= SCRATCH_BYTES


def test_channels_of_many_rows_are_always_cut_alike() -> None:
    """Each number of channels is a kernel of its own, which takes seconds to compile."""
    found = {RELEASED.channels_at_once(rows) for rows in range(1, 9217)}

    assert found == {5120, 1024}


_SAME_BITS = """
from copy import copy
from dataclasses import replace
from deepinfer_core.conformance.call import calls
from deepinfer_core.conformance.implementations import native_candidates
from deepinfer_core.conformance.execute import observe
from deepinfer_core.conformance.compare import compare_bits
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.moe.experts import expert_layer
from deepinfer_cuda import expert_room, scratch
from deepinfer_cuda.backend import CudaBackend
from deepinfer_cuda.ops import attention_output, linear as linear_ops

backend = CudaBackend()
whole = expert_room.ExpertRoom.channels_at_once, scratch.row_pieces

def wide(call):
    case = copy(call.case)
    case.sizes = {**case.sizes, "H": 256}  # two blocks of channels
    return replace(call, case=case)

def in_pieces(num_rows, bytes_per_row, room=0):
    return [slice(begin, min(begin + 16, num_rows)) for begin in range(0, num_rows, 16)]

for op in (expert_layer, linear, project_output):
    *_, candidate = native_candidates(backend, op)  # libraries for SM100 come before
    tried = [wide(call) if op is expert_layer else call for call in calls(op)]
    tried = [call for call in tried if call.rows > 2 and not candidate.refusals(call)][:2]
    assert tried, op.name
    for call in tried:
        expected = observe(candidate, call, backend.device()).result
        expert_room.ExpertRoom.channels_at_once = lambda self, num_rows: 128
        for module in (expert_room, attention_output, linear_ops):
            module.row_pieces = in_pieces
        compare_bits(observe(candidate, call, backend.device()).result, expected, "result")
        expert_room.ExpertRoom.channels_at_once = whole[0]
        for module in (expert_room, attention_output, linear_ops):
            module.row_pieces = whole[1]
        print(op.name, call.case.id, call.rows)
"""


def test_pieces_give_the_bits_of_the_whole() -> None:
    lines = interpreted_lines(_SAME_BITS)

    assert {line.split()[0] for line in lines} == {
        "moe.expert_layer",
        "linear.linear",
        "attention.project_output",
    }
