"""``speculation``: drafts made, judged and counted."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.errors import ShapeError
from deepinfer_core.ops.limits import at_most, dtype_in
from deepinfer_core.ops.sampling.fixed_point import DRAW_BITS
from deepinfer_core.ops.sampling.random import ACCEPT, DRAW, RESIDUAL
from deepinfer_core.ops.speculation.accept_prefix import accept_prefix
from deepinfer_core.ops.speculation.choose_lengths import choose_lengths
from deepinfer_core.ops.speculation.confidence import LARGEST_LOGIT, MIN_TEMPERATURE, confidence
from deepinfer_core.ops.speculation.draft_features import draft_features
from deepinfer_core.ops.speculation.markov_logits import markov_logits
from deepinfer_core.ops.speculation.verify import MIN_RESIDUAL, verify
from deepinfer_cuda.kernels.accept_prefix import accept_prefix_kernel
from deepinfer_cuda.kernels.choose_lengths import choose_lengths_kernel
from deepinfer_cuda.kernels.confidence import confidence_kernel
from deepinfer_cuda.kernels.draft_features import draft_features_kernel
from deepinfer_cuda.kernels.markov_logits import markov_logits_kernel
from deepinfer_cuda.kernels.verify import verify_kernel
from deepinfer_cuda.launch import launch
from deepinfer_cuda.row_tiles import flat_rows, power_of_two
from deepinfer_cuda.vocabulary_blocks import float64_scan

_ACCEPT_SEQUENCES = 64
_CHOOSE_SEQUENCES = 8
_COMPARED_SEQUENCES = 32
_FEATURE_CHANNELS = 1024
_CONFIDENCE_CHANNELS = 1024
_MARKOV_TOKENS = 16
_MARKOV_COLUMNS = 128
_WIDEST_RANK = 512


def run_accept_prefix(accepted: Tensor, first_row: Tensor) -> tuple[Tensor, Tensor]:
    """``speculation.accept_prefix``."""
    num_sequences, num_drafts = accepted.shape
    flags, stride = flat_rows(accepted.view(torch.uint8))
    num_accepted, last_row = (torch.empty_like(first_row, dtype=torch.int32) for _ in range(2))
    launch(
        accept_prefix_kernel,
        (-(-num_sequences // _ACCEPT_SEQUENCES),),
        *(flags, first_row.contiguous(), num_accepted, last_row, num_sequences, stride),
        DRAFTS=num_drafts,
        BLOCK=power_of_two(num_drafts),
        SEQUENCES=_ACCEPT_SEQUENCES,
    )
    return num_accepted, last_row


def run_choose_lengths(confidence: Tensor, limits: Tensor, budget: Tensor) -> Tensor:
    """``speculation.choose_lengths``."""
    num_sequences, num_steps = confidence.shape
    rows, stride = flat_rows(confidence)
    result = torch.empty(num_sequences, dtype=torch.int32, device=confidence.device)
    launch(
        choose_lengths_kernel,
        (-(-num_sequences // _CHOOSE_SEQUENCES),),
        *(rows, limits.contiguous(), budget, result, num_sequences, stride),
        STEPS=num_steps,
        BLOCK=power_of_two(num_steps),
        OWN=_CHOOSE_SEQUENCES,
        OTHERS=_COMPARED_SEQUENCES,
    )
    return result


def run_confidence(
    hidden: Tensor, previous: Tensor, embedding: Tensor, weight: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``speculation.confidence``."""
    num_rows, width = hidden.shape
    rank = embedding.shape[1]
    if weight.shape[-1] != width + rank:
        raise ShapeError(
            f"speculation.confidence: weight has {weight.shape[-1]} columns, H={width} and I={rank} need "
            f"{width + rank}; load the confidence head of this draft module"
        )
    rows, stride = flat_rows(hidden)
    table, table_stride = flat_rows(embedding)
    logits, chances = (torch.empty(num_rows, device=hidden.device) for _ in range(2))
    launch(
        confidence_kernel,
        (num_rows,),
        *(rows, previous.contiguous(), table, weight.contiguous(), logits, chances, stride, table_stride),
        *(1.0 / max(temperature, MIN_TEMPERATURE), LARGEST_LOGIT),
        WIDTH=width,
        RANK=rank,
        BLOCK=_CONFIDENCE_CHANNELS,
    )
    return logits, chances


def run_draft_features(streams: Tensor) -> Tensor:
    """``speculation.draft_features``."""
    num_tokens, num_streams, width = streams.shape
    x = streams if streams.stride(-1) == 1 else streams.contiguous()
    result = torch.empty((num_tokens, width), dtype=streams.dtype, device=streams.device)
    block = min(power_of_two(width), _FEATURE_CHANNELS)
    launch(
        draft_features_kernel,
        (num_tokens, -(-width // block)),
        *(x, result, x.stride(0), x.stride(1)),
        STREAMS=num_streams,
        WIDTH=width,
        BLOCK=block,
    )
    return result


def run_markov_logits(base: Tensor, previous: Tensor, embedding: Tensor, head: Tensor) -> Tensor:
    """``speculation.markov_logits``."""
    num_rows, vocab_size = base.shape
    rank = embedding.shape[1]
    rows, base_stride = flat_rows(base)
    table, table_stride = flat_rows(embedding)
    outputs, head_stride = flat_rows(head)
    result = torch.empty((num_rows, vocab_size), dtype=base.dtype, device=base.device)
    launch(
        markov_logits_kernel,
        (-(-vocab_size // _MARKOV_COLUMNS) if num_rows else 0,),
        *(rows, previous.contiguous(), table, outputs, result, num_rows, base_stride, table_stride, head_stride),
        VOCAB=vocab_size,
        RANK=rank,
        RANK_BLOCK=max(power_of_two(rank), 16),
        TOKENS=_MARKOV_TOKENS,
        COLUMNS=_MARKOV_COLUMNS,
    )
    return result


def run_verify(
    target: Tensor, drafts: Tensor, draft_logprobs: Tensor | None, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``speculation.verify``."""
    num_rows, vocab_size = target.shape
    rows, target_stride = flat_rows(target)
    proposed, draft_stride = (None, 0) if draft_logprobs is None else flat_rows(draft_logprobs)
    accepted = torch.empty(num_rows, dtype=torch.bool, device=target.device)
    tokens = torch.empty(num_rows, dtype=torch.int32, device=target.device)
    expected = torch.empty(num_rows, device=target.device)
    blocks = float64_scan(vocab_size)
    launch(
        verify_kernel,
        (num_rows,),
        *(rows, drafts.contiguous(), proposed, seeds.contiguous(), positions.contiguous()),
        *(accepted.view(torch.uint8), tokens, expected, target_stride, draft_stride, MIN_RESIDUAL * 2.0**DRAW_BITS),
        ACCEPT=ACCEPT,
        RESIDUAL=RESIDUAL,
        DRAW=DRAW,
        BLOCKS=blocks.padded_count,
        **blocks.settings,
    )
    return accepted, tokens, expected


_ACTIVATIONS = dtype_in("bf16", "f32")

IMPLEMENTATIONS = {
    accept_prefix: (Implementation(run_accept_prefix, row_invariant=True),),
    choose_lengths: (Implementation(run_choose_lengths),),
    confidence: (Implementation(run_confidence, (_ACTIVATIONS,), row_invariant=True),),
    draft_features: (Implementation(run_draft_features, (_ACTIVATIONS,), row_invariant=True),),
    markov_logits: (Implementation(run_markov_logits, (_ACTIVATIONS, at_most("I", _WIDEST_RANK)), row_invariant=True),),
    verify: (Implementation(run_verify, row_invariant=True),),
}
