"""``indexer`` at the released sizes, for the compile test."""

from __future__ import annotations

from typing import Any

import torch

from deepinfer_core.tensor import Cache, QuantTensor
from deepinfer_cuda.ops.indexer import (
    run_block_maximum,
    run_candidate_scores,
    run_expand_candidates,
    run_index_scores,
    run_select_entries,
    run_select_within_candidates,
    run_top_k,
)

_HEADS, _CHANNELS, _TOP_K, _CANDIDATES = 32, 128, 512, 2048


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _integers(*shape: int) -> torch.Tensor:
    return _meta(*shape, dtype=torch.int32)


def _step(num_rows: int, context: int, *, ratio: int = 1) -> dict[str, Any]:
    """A step of one sequence; keys lie in one section of blocks of 128 tokens."""
    rows = 128 // ratio
    data = _meta(num_rows, _HEADS, _CHANNELS // 2, dtype=torch.uint8)
    scale = _meta(num_rows, _HEADS, _CHANNELS // 32, dtype=torch.uint8)
    storage = _meta(9000, 114048, dtype=torch.uint8)[:, : rows * 68]
    return {
        "query": QuantTensor(data, scale, "mxfp4"),
        "head_weights": _meta(num_rows, _HEADS),
        "keys": Cache(storage, "mxfp4", _CHANNELS, rows, sectioned=True),
        "block_table": _integers(num_rows, context // 128),
        "row_sequence": _integers(num_rows),
        "visible": _integers(num_rows),
        "score_mode": "fma_chain",
    }


_PREFILL = {"query_lengths": (4096,)}
_CANDIDATE_BLOCKS = {"candidate_blocks": _CANDIDATES, "candidate_block_size": 8}

CALLS = {
    "index_scores_decode": lambda: run_index_scores(**_step(64, 131072)),
    "index_scores_decode_ratio_2": lambda: run_index_scores(**_step(64, 131072, ratio=2)),
    "index_scores_prefill": lambda: run_index_scores(**_step(4096, 131072), **_PREFILL),
    "select_short": lambda: run_select_entries(**_step(64, 4096), k=_TOP_K),
    "select_decode": lambda: run_select_entries(**_step(64, 131072), k=_TOP_K, **_CANDIDATE_BLOCKS),
    "select_decode_ratio_2": lambda: run_select_entries(**_step(64, 131072, ratio=2), k=_TOP_K),
    "select_decode_longest": lambda: run_select_entries(**_step(64, 1048576), k=_TOP_K, **_CANDIDATE_BLOCKS),
    "select_prefill": lambda: run_select_entries(**_step(4096, 131072), k=_TOP_K, **_CANDIDATE_BLOCKS, **_PREFILL),
    "select_within_candidates": lambda: run_select_within_candidates(
        **_step(64, 131072), candidates=_integers(64, _CANDIDATES), k=_TOP_K, candidate_block_size=8
    ),
    "top_k": lambda: run_top_k(_meta(64, 131072), _integers(64), k=_TOP_K),
    "top_k_longest": lambda: run_top_k(_meta(64, 1048576), _integers(64), k=_TOP_K),
    "block_maximum": lambda: run_block_maximum(_meta(64, 131072), _integers(64), block_size=8),
    "candidate_scores": lambda: run_candidate_scores(
        _meta(64, 131072), _integers(64), _integers(64, _CANDIDATES), block_size=8
    ),
    "expand_candidates": lambda: run_expand_candidates(_integers(64, _TOP_K), _integers(64, _CANDIDATES), block_size=8),
}
"""Name -> a call of an adapter on tensors without storage."""
