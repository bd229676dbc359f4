"""Drafts accepted or replaced by rejection sampling."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.draw_token import find_block, token_in_block
from deepinfer_cuda.kernels.sample import DRAW_BITS
from deepinfer_cuda.kernels.vocabulary_rows import fixed_point, random_words, uniform_below


@triton.jit
def _chances(target_ptr, draft_ptr, draft, block, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """P and q (float64) of one block; q is one-hot without ``draft_ptr``, and zero in a row without a draft."""
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    p = tl.exp(tl.load(target_ptr + column, mask=inside, other=float("-inf")).to(tl.float64))
    if draft_ptr is None:
        q = (column == draft).to(tl.float64)
    else:
        q = tl.exp(tl.load(draft_ptr + column, mask=inside & (draft >= 0), other=float("-inf")).to(tl.float64))
    return p, q


@triton.jit
def verify_kernel(
    target_ptr, drafts_ptr, draft_logprobs_ptr, seeds_ptr, positions_ptr, accepted_ptr, tokens_ptr, expected_ptr,
    target_stride, draft_stride, least_residual,
    ACCEPT: tl.constexpr, RESIDUAL: tl.constexpr, DRAW: tl.constexpr,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One pass for the sums of blocks, of the residual and of the target; then the block that holds the token."""
    row = tl.program_id(0).to(tl.int64)
    target_ptr += row * target_stride
    if draft_logprobs_ptr is not None:
        draft_logprobs_ptr += row * draft_stride
    draft = tl.load(drafts_ptr + row)
    residual_sums = tl.zeros((BLOCKS,), tl.int64)
    target_sums = tl.zeros((BLOCKS,), tl.int64)
    overlap = tl.zeros((BLOCK,), tl.float64)
    number = tl.arange(0, BLOCKS)
    for block in tl.range(0, tl.cdiv(VOCAB, BLOCK), num_stages=STAGES):
        p, q = _chances(target_ptr, draft_logprobs_ptr, draft, block, VOCAB, BLOCK)
        overlap += tl.where(p < q, p, tl.where(p != p, p, q))  # a minimum that keeps NaN of either
        residual_sums = tl.where(number == block, tl.sum(fixed_point(p - q, DRAW_BITS), 0), residual_sums)
        target_sums = tl.where(number == block, tl.sum(fixed_point(p, DRAW_BITS), 0), target_sums)

    has_draft = draft >= 0
    chance_p = tl.exp(tl.load(target_ptr + tl.maximum(draft, 0)).to(tl.float64))
    chance_q = has_draft.to(tl.float64)
    if draft_logprobs_ptr is not None:
        chance_q *= tl.exp(tl.load(draft_logprobs_ptr + tl.maximum(draft, 0)).to(tl.float64))
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    coin, _ = random_words(seed, position, ACCEPT)
    accepted = has_draft & (chance_q > 0.0) & (coin.to(tl.float64) * (2.0**-32) * chance_q < chance_p)

    from_target = tl.sum(residual_sums, 0).to(tl.float64) < least_residual
    sums = tl.where(from_target, target_sums, residual_sums)
    total = tl.sum(sums, 0)
    word_0, word_1 = random_words(seed, position, tl.where(has_draft, RESIDUAL, DRAW))
    target = uniform_below(total, word_0, word_1)
    block, before = find_block(sums, target, BLOCKS)
    p, q = _chances(target_ptr, draft_logprobs_ptr, draft, block, VOCAB, BLOCK)
    weights = fixed_point(tl.where(from_target, p, p - q), DRAW_BITS)
    drawn = tl.where(total > 0, token_in_block(weights, block, before, target, BLOCK), -1)
    tl.store(accepted_ptr + row, accepted.to(tl.uint8))
    tl.store(tokens_ptr + row, tl.where(accepted, draft, drawn))
    tl.store(expected_ptr + row, tl.where(has_draft, tl.sum(overlap, 0), 1.0).to(tl.float32))
