"""``sampling``: from logits to tokens. A row belongs to one program, or to several that share nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.errors import ContractError, ShapeError
from deepinfer_core.ops.sampling.apply_logit_bias import apply_logit_bias
from deepinfer_core.ops.sampling.apply_penalties import apply_penalties
from deepinfer_core.ops.sampling.apply_token_mask import apply_token_mask, num_mask_words
from deepinfer_core.ops.sampling.finite_rows import finite_rows
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.race import race
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.sampling.top_logprobs import top_logprobs
from deepinfer_cuda.kernels.apply_logit_bias import apply_logit_bias_kernel
from deepinfer_cuda.kernels.apply_penalties import apply_penalties_kernel
from deepinfer_cuda.kernels.apply_token_mask import apply_token_mask_kernel
from deepinfer_cuda.kernels.finite_rows import finite_rows_kernel
from deepinfer_cuda.kernels.greedy import greedy_kernel
from deepinfer_cuda.kernels.log_probabilities import best_of_parts_kernel, log_probabilities_kernel, masses_kernel
from deepinfer_cuda.kernels.process_logits import process_logits_kernel
from deepinfer_cuda.kernels.race import race_parts_kernel, race_winner_kernel
from deepinfer_cuda.kernels.sample import sample_kernel
from deepinfer_cuda.kernels.top_logprobs import top_logprobs_kernel
from deepinfer_cuda.launch import launch
from deepinfer_cuda.row_tiles import flat_rows, power_of_two
from deepinfer_cuda.vocabulary_blocks import (
    elementwise,
    filtered_scan,
    float32_scan,
    float64_scan,
    race_scan,
    temperature_scan,
)

_BIAS_PLACES = 128
"""Biases that a program looks at in one load."""
_BLOCKS_OF_A_PART = 8
"""Blocks of a row that a program has that shares the row with others."""


def run_apply_logit_bias(logits: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """``sampling.apply_logit_bias``."""
    rows, stride = flat_rows(logits)
    tokens, tokens_stride = flat_rows(ids)
    amounts, amounts_stride = flat_rows(values)
    result = _like(logits)
    blocks = elementwise(logits.shape[1])
    launch(
        apply_logit_bias_kernel,
        (len(rows), blocks.count),
        *(rows, tokens, amounts, result, ids.shape[1], stride, tokens_stride, amounts_stride),
        PLACES=_BIAS_PLACES,
        **blocks.settings,
    )
    return result


def run_apply_token_mask(logits: Tensor, mask: Tensor) -> Tensor:
    """``sampling.apply_token_mask``."""
    rows, stride = flat_rows(logits)
    words, words_stride = flat_rows(mask)
    vocab_size = logits.shape[1]
    if words.shape[1] != num_mask_words(vocab_size):
        raise ShapeError(
            f"sampling.apply_token_mask: mask has {words.shape[1]} words a row, V={vocab_size} needs "
            f"{num_mask_words(vocab_size)}; make the mask for the vocabulary of the logits"
        )
    result = _like(logits)
    blocks = elementwise(vocab_size)
    launch(
        apply_token_mask_kernel,
        (len(rows), blocks.count),
        *(rows, words, result, stride, words_stride),
        **blocks.settings,
    )
    return result


def run_apply_penalties(
    logits: Tensor, output_counts: Tensor, in_prompt: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """``sampling.apply_penalties``."""
    rows, stride = flat_rows(logits)
    counts, counts_stride = flat_rows(output_counts)
    flags, flags_stride = flat_rows(in_prompt.view(torch.uint8))
    factors = (factor.contiguous() for factor in (repetition, presence, frequency))
    result = _like(logits)
    blocks = elementwise(logits.shape[1])
    launch(
        apply_penalties_kernel,
        (len(rows), blocks.count),
        *(rows, counts, flags, *factors, result, stride, counts_stride, flags_stride),
        **blocks.settings,
    )
    return result


def run_finite_rows(logits: Tensor) -> Tensor:
    """``sampling.finite_rows``."""
    rows, stride = flat_rows(logits)
    result = torch.empty(len(rows), dtype=torch.bool, device=logits.device)
    blocks = float32_scan(logits.shape[1])
    launch(finite_rows_kernel, (len(rows),), rows, result.view(torch.uint8), stride, **blocks.settings)
    return result


def run_greedy(logits: Tensor) -> Tensor:
    """``sampling.greedy``."""
    rows, stride = flat_rows(logits)
    result = torch.empty(len(rows), dtype=torch.int32, device=logits.device)
    launch(greedy_kernel, (len(rows),), rows, result, stride, **float32_scan(logits.shape[1]).settings)
    return result


def run_process_logits(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """``sampling.process_logits``."""
    filters = (top_k, top_p, min_p)
    if all(f is None for f in filters):
        return _log_probabilities(logits, temperature.contiguous())
    rows, stride = flat_rows(logits)
    result = _like(logits)
    ids = result.view(torch.int32)
    given = sum(1 << bit for bit, f in enumerate(filters) if f is not None)
    # A filter that is absent is never read; it needs a pointer of its type, so that there is one kernel for all.
    pointers = [
        e if f is None else f.contiguous() for f, e in zip(filters, (ids, temperature, temperature), strict=True)
    ]
    launch(
        process_logits_kernel,
        (len(rows),),
        *(rows, temperature.contiguous(), *pointers, result, ids, stride, given),
        **filtered_scan(logits.shape[1]).settings,
    )
    return result


def _log_probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    """``sampling.process_logits`` without filters."""
    rows, stride = flat_rows(logits)
    blocks = temperature_scan(logits.shape[1])
    part = _BLOCKS_OF_A_PART * blocks.block
    parts = -(-blocks.vocab_size // part)
    shape = (len(rows), parts)
    best = torch.empty(shape, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(shape, dtype=torch.int32, device=logits.device)
    masses = torch.empty(shape, dtype=torch.int64, device=logits.device)
    result = _like(logits)
    launch(best_of_parts_kernel, shape, rows, best, tokens, stride, PART=part, **blocks.settings)
    settings = {"PART": part, "PARTS": parts, "PADDED": power_of_two(parts), **blocks.settings}
    launch(masses_kernel, shape, rows, temperature, best, masses, stride, **settings)
    launch(log_probabilities_kernel, shape, *(rows, temperature, best, tokens, masses, result, stride), **settings)
    return result


def run_race(logprobs: Tensor, seeds: Tensor, positions: Tensor, *, purpose: int) -> Tensor:
    """``sampling.race``."""
    rows, stride = flat_rows(logprobs)
    blocks = race_scan(logprobs.shape[1])
    parts = -(-blocks.count // _BLOCKS_OF_A_PART)
    times = torch.empty((len(rows), parts), dtype=torch.float64, device=logprobs.device)
    tokens = torch.empty((len(rows), parts), dtype=torch.int32, device=logprobs.device)
    result = torch.empty(len(rows), dtype=torch.int32, device=logprobs.device)
    launch(
        race_parts_kernel,
        (len(rows), parts),
        *(rows, seeds.contiguous(), positions.contiguous(), times, tokens, stride, purpose),
        PART=_BLOCKS_OF_A_PART * blocks.block,
        **blocks.settings,
    )
    settings = {"PARTS": parts, "PADDED": power_of_two(parts), "num_warps": 1}
    launch(race_winner_kernel, (len(rows),), times, tokens, result, **settings)
    return result


def run_sample(logprobs: Tensor, seeds: Tensor, positions: Tensor, *, purpose: int) -> Tensor:
    """``sampling.sample``."""
    rows, stride = flat_rows(logprobs)
    result = torch.empty(len(rows), dtype=torch.int32, device=logprobs.device)
    blocks = float64_scan(logprobs.shape[1])
    launch(
        sample_kernel,
        (len(rows),),
        *(rows, seeds.contiguous(), positions.contiguous(), result, stride, purpose),
        BLOCKS=blocks.padded_count,
        **blocks.settings,
    )
    return result


def run_top_logprobs(logits: Tensor, ids: Tensor, *, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``sampling.top_logprobs``."""
    rows, stride = flat_rows(logits)
    num_rows, vocab_size = logits.shape
    if not 0 <= n <= vocab_size:
        raise ContractError(f"sampling.top_logprobs: n={n} must be from 0 to V={vocab_size}; bind it with a smaller n")
    logprobs, best_logprobs = (torch.empty(shape, device=logits.device) for shape in ((num_rows,), (num_rows, n)))
    ranks, best_ids = (torch.empty_like(values, dtype=torch.int32) for values in (logprobs, best_logprobs))
    blocks = float64_scan(vocab_size)
    launch(
        top_logprobs_kernel,
        (num_rows,),
        *(rows, ids.contiguous(), logprobs, ranks, best_logprobs, best_ids, stride),
        COUNT=n,
        BLOCKS=blocks.padded_count,
        **blocks.settings,
    )
    return logprobs, ranks, best_logprobs, best_ids


def _like(logits: Tensor) -> Tensor:
    """Dense room for logits of this shape."""
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


IMPLEMENTATIONS = {
    apply_logit_bias: (Implementation(run_apply_logit_bias, row_invariant=True),),
    apply_penalties: (Implementation(run_apply_penalties, row_invariant=True),),
    apply_token_mask: (Implementation(run_apply_token_mask, row_invariant=True),),
    finite_rows: (Implementation(run_finite_rows, row_invariant=True),),
    greedy: (Implementation(run_greedy, row_invariant=True),),
    process_logits: (Implementation(run_process_logits, row_invariant=True),),
    race: (Implementation(run_race, row_invariant=True),),
    sample: (Implementation(run_sample, row_invariant=True),),
    top_logprobs: (Implementation(run_top_logprobs, row_invariant=True),),
}
