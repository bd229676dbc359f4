"""Draft logits corrected by the token before: a product of low rank, added to the logits."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.number_formats import INTERPRETED


@triton.jit
def markov_logits_kernel(
    base_ptr, previous_ptr, embedding_ptr, head_ptr, result_ptr, num_rows, base_stride, embedding_stride, head_stride,
    VOCAB: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program reads its part of the head once, for all rows; every row is summed by a product of the same shape."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.arange(0, RANK_BLOCK)
    inside = column < VOCAB
    head = tl.load(
        head_ptr + column.to(tl.int64)[:, None] * head_stride + channel[None, :],
        mask=inside[:, None] & (channel < RANK)[None, :], other=0.0,
    )  # fmt: skip
    for start in range(0, num_rows, TOKENS):
        row = start + tl.arange(0, TOKENS)
        present = row < num_rows
        token = tl.load(previous_ptr + row, mask=present, other=0).to(tl.int64)
        embedded = tl.load(
            embedding_ptr + token[None, :] * embedding_stride + channel[:, None],
            mask=present[None, :] & (channel < RANK)[:, None], other=0.0,
        )  # fmt: skip
        if INTERPRETED:  # it takes the bits of bf16 operands for integers
            product = tl.dot(head.to(tl.float32), embedded.to(tl.float32))
        else:
            product = tl.dot(head, embedded, input_precision="ieee")
        wanted = present[:, None] & inside[None, :]
        wide_row = row.to(tl.int64)[:, None]
        base = tl.load(base_ptr + wide_row * base_stride + column[None, :], mask=wanted, other=0.0)
        tl.store(result_ptr + wide_row * VOCAB + column[None, :], base + tl.trans(product), mask=wanted)
