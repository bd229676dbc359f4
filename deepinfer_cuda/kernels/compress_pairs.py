"""Pairs of neighbouring tokens pooled to one entry, and the ring that remembers the latest tokens."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import rounded


@triton.jit
def _rank_in_sequence(row_sequence_ptr, row, sequence, SCAN: tl.constexpr):
    """Rows of the same sequence before this one in the step."""
    count = tl.zeros((SCAN,), tl.int32)
    for start in range(0, row, SCAN):
        other = start + tl.arange(0, SCAN)
        found = tl.load(row_sequence_ptr + other, mask=other < row, other=-1)
        count += (found == sequence).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _write_row(ring_row_ptr, gate_ptr, value_ptr, channel, inside, value_distance):
    """One row of gates and values into the ring."""
    tl.store(ring_row_ptr + channel, tl.load(gate_ptr + channel, mask=inside), mask=inside)
    tl.store(ring_row_ptr + value_distance + channel, tl.load(value_ptr + channel, mask=inside), mask=inside)


@triton.jit
def compress_pairs_kernel(
    gate_ptr, value_ptr, positions_ptr, row_sequence_ptr, state_slots_ptr, context_lengths_ptr, ring_ptr, result_ptr,
    gate_stride, value_stride, slot_stride, ring_row_stride, value_distance,
    RING: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """One program a row.

    The first row of a sequence reads the ring row that the last rows of a long step overwrite. So that no program
    overwrites it before it is read, that one ring row is written by the program that reads it.
    """
    row = tl.program_id(0)
    sequence = tl.load(row_sequence_ptr + row)
    position = tl.load(positions_ptr + row)
    is_first = tl.load(row_sequence_ptr + row - 1, mask=row > 0, other=-1) != sequence
    channel = tl.arange(0, BLOCK)
    inside = channel < WIDTH
    pooled = tl.zeros((BLOCK,), tl.float32)
    if sequence >= 0:
        length = tl.load(context_lengths_ptr + sequence)
        ring_of_sequence = ring_ptr + tl.load(state_slots_ptr + sequence).to(tl.int64) * slot_stride
        gate_row = gate_ptr + row.to(tl.int64) * gate_stride
        value_row = value_ptr + row.to(tl.int64) * value_stride
        before = ring_of_sequence + (position + RING - 1) % RING * ring_row_stride
        if position % 2 == 1:
            gate = tl.load(gate_row + channel, mask=inside, other=0.0)
            value = tl.load(value_row + channel, mask=inside, other=0.0)
            from_ring = inside & is_first
            from_step = inside & (is_first == 0)
            ring_gate = tl.load(before + channel, mask=from_ring, other=0.0)
            ring_value = tl.load(before + value_distance + channel, mask=from_ring, other=0.0)
            step_gate = tl.load(gate_row - gate_stride + channel, mask=from_step, other=0.0)
            step_value = tl.load(value_row - value_stride + channel, mask=from_step, other=0.0)
            partner_gate = tl.where(is_first, ring_gate, step_gate)
            partner_value = tl.where(is_first, ring_value, step_value)
            largest = tl.maximum(gate, partner_gate)
            weight, partner_weight = tl.exp(gate - largest), tl.exp(partner_gate - largest)
            pooled = (partner_weight * partner_value + weight * value) / (partner_weight + weight)
        if is_first:
            tl.debug_barrier()
            later = (length - position) // RING * RING
            if later > 0:
                steps = (later - 1).to(tl.int64)
                _write_row(
                    before, gate_row + steps * gate_stride, value_row + steps * value_stride,
                    channel, inside, value_distance,
                )  # fmt: skip
        if position >= length - RING:
            rank = row * 0
            if tl.load(row_sequence_ptr + row - (RING - 1), mask=row >= RING - 1, other=-1) == sequence:
                rank = _rank_in_sequence(row_sequence_ptr, row, sequence, SCAN)
            if (rank + 1) % RING != 0:
                target = ring_of_sequence + position % RING * ring_row_stride
                _write_row(target, gate_row, value_row, channel, inside, value_distance)
    result = result_ptr + row.to(tl.int64) * WIDTH + channel
    tl.store(result, rounded(pooled, result_ptr.dtype.element_ty), mask=inside)
