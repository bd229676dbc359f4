"""Index scores and selection at the released sizes: decode at contexts of 4k, 131k and 1M, prefill of 4096 queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from measure import Measurement, Work
from torch import Tensor

from deepinfer_core.tensor import Cache, QuantTensor
from deepinfer_cuda.ops.indexer import (
    run_block_maximum,
    run_index_scores,
    run_select_entries,
    run_select_within_candidates,
    run_top_k,
)

HEADS, CHANNELS, KEY_BYTES = 32, 128, 68
TOP_K, CANDIDATES, CANDIDATE_SIZE = 512, 2048, 8
BLOCK_TOKENS = 128
ROTATED_BYTES = 200 << 20
"""Several times the L2 cache."""
FLOP_OF_A_PAIR = 2 * HEADS * CHANNELS


def measurements() -> Iterator[Measurement]:
    """All of this family."""
    for context in (4096, 131072, 1048576):
        for sequences in (1, 64):
            yield _scores(sequences, context)
    yield _scores(64, 131072, ratio=2)
    yield _scores(4096, 131072, prefill=True)
    for context in (4096, 131072, 1048576):
        for sequences in (1, 64):
            yield _top_k(sequences, context)
    yield _top_k(4096, 131072)
    yield _block_maximum(64, 131072)
    for context in (4096, 131072, 1048576):
        for sequences in (1, 64):
            yield _select(sequences, context)
    yield _select(4096, 131072, prefill=True)
    for sequences in (1, 64):
        yield _within(sequences, 131072)
    yield _within(4096, 131072, prefill=True)


def _scores(rows: int, context: int, *, ratio: int = 1, prefill: bool = False) -> Measurement:
    entries = context // ratio
    sequences = 1 if prefill else rows

    def make() -> list[Work]:
        return [lambda s=s: run_index_scores(**s) for s in _steps(rows, context, ratio=ratio, prefill=prefill)]

    return Measurement(
        group="index_scores",
        name="prefill" if prefill else "decode",
        shape=f"rows={rows} context={context} ratio={ratio}",
        bytes=sequences * entries * KEY_BYTES + rows * entries * 2,
        flop=rows * entries * FLOP_OF_A_PAIR,
        make=make,
        target=0.0 if prefill else 0.6,
        check=(lambda: _check_scores(prefill)) if context == 4096 or prefill else None,
        tolerance=0.02,
    )


def _top_k(rows: int, width: int) -> Measurement:
    def inputs() -> list[tuple[Tensor, Tensor]]:
        count = _rotations(rows * width * 2)
        lengths = torch.full((rows,), width, dtype=torch.int32, device="cuda")
        return [(torch.randn(rows, width, device="cuda", dtype=torch.bfloat16), lengths) for _ in range(count)]

    def make() -> list[Work]:
        return [lambda s=s, n=n: run_top_k(s, n, k=TOP_K) for s, n in inputs()]

    def peer() -> list[Work]:
        return [lambda s=s: torch.topk(s, TOP_K, sorted=False) for s, _ in inputs()]

    return Measurement(
        group="select",
        name="top_k",
        shape=f"rows={rows} width={width}",
        bytes=rows * (width * 2 + TOP_K * 4),
        flop=0,
        make=make,
        peer=peer if rows * width <= 1 << 27 else None,
        target=0.5,
        check=lambda: _check_top_k(min(rows, 8), width),
    )


def _block_maximum(rows: int, width: int) -> Measurement:
    def make() -> list[Work]:
        scores = [
            torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(_rotations(rows * width * 2))
        ]
        lengths = torch.full((rows,), width, dtype=torch.int32, device="cuda")
        return [lambda s=s: run_block_maximum(s, lengths, block_size=CANDIDATE_SIZE) for s in scores]

    return Measurement(
        group="select",
        name="block_maximum",
        shape=f"rows={rows} width={width}",
        bytes=rows * (width * 2 + width // CANDIDATE_SIZE * 2),
        flop=0,
        make=make,
        target=0.5,
    )


def _select(rows: int, context: int, *, prefill: bool = False) -> Measurement:
    """Scores, entries and candidate blocks; the scores themselves are no part of the floor."""

    def run(step: dict[str, Any]) -> Any:
        return run_select_entries(**step, k=TOP_K, candidate_blocks=CANDIDATES, candidate_block_size=CANDIDATE_SIZE)

    def make() -> list[Work]:
        return [lambda s=s: run(s) for s in _steps(rows, context, prefill=prefill)]

    sequences = 1 if prefill else rows
    return Measurement(
        group="select_entries",
        name="prefill" if prefill else "decode",
        shape=f"rows={rows} context={context}",
        bytes=sequences * context * KEY_BYTES + rows * (TOP_K + CANDIDATES) * 4,
        flop=rows * context * FLOP_OF_A_PAIR,
        make=make,
        target=0.0 if prefill else 0.5,
        check=lambda: _check_select(context),
    )


def _within(rows: int, context: int, *, prefill: bool = False) -> Measurement:
    def make() -> list[Work]:
        steps = _steps(rows, context, prefill=prefill)
        chosen = _candidate_blocks(rows, context)
        return [
            lambda s=s: run_select_within_candidates(
                **s, candidates=chosen, k=TOP_K, candidate_block_size=CANDIDATE_SIZE
            )
            for s in steps
        ]

    pairs = rows * CANDIDATES * CANDIDATE_SIZE
    read = context * KEY_BYTES if prefill else pairs * KEY_BYTES
    return Measurement(
        group="select_within",
        name="prefill" if prefill else "decode",
        shape=f"rows={rows} context={context}",
        bytes=read + rows * (CANDIDATES + TOP_K) * 4,
        flop=pairs * FLOP_OF_A_PAIR,
        make=make,
        target=0.0 if prefill else 0.5,
        check=lambda: _check_within(context),
    )


def _rotations(size: int) -> int:
    return max(1, min(64, ROTATED_BYTES // max(size, 1)))


def _steps(
    rows: int, context: int, *, ratio: int = 1, prefill: bool = False, count: int | None = None
) -> list[dict[str, Any]]:
    """Inputs of several steps on caches of their own; blocks of a sequence are scattered."""
    sequences = 1 if prefill else rows
    entries = BLOCK_TOKENS // ratio
    blocks = context // BLOCK_TOKENS
    size = sequences * blocks * entries * KEY_BYTES
    return [_step(rows, sequences, blocks, entries, prefill=prefill) for _ in range(count or _rotations(size))]


def _step(rows: int, sequences: int, blocks: int, entries: int, *, prefill: bool) -> dict[str, Any]:
    total = 1 + sequences * blocks
    storage = torch.randint(0, 256, (total, entries * KEY_BYTES), dtype=torch.uint8, device="cuda")
    values = entries * CHANNELS // 2
    storage[:, values:] = storage[:, values:] % 4 + 122
    table = (torch.randperm(sequences * blocks, device="cuda") + 1).to(torch.int32).reshape(sequences, blocks)
    data = torch.randint(0, 256, (rows, HEADS, CHANNELS // 2), dtype=torch.uint8, device="cuda")
    scale = torch.randint(122, 126, (rows, HEADS, CHANNELS // 32), dtype=torch.uint8, device="cuda")
    sequence = torch.zeros(rows, dtype=torch.int32, device="cuda")
    if not prefill:
        sequence = torch.arange(rows, dtype=torch.int32, device="cuda")
    return {
        "query": QuantTensor(data, scale, "mxfp4"),
        "head_weights": torch.randn(rows, HEADS, dtype=torch.bfloat16, device="cuda"),
        "keys": Cache(storage, "mxfp4", CHANNELS, entries, sectioned=True),
        "block_table": table,
        "row_sequence": sequence,
        "visible": torch.full((rows,), blocks * entries, dtype=torch.int32, device="cuda"),
        "score_mode": "fma_chain",
        "query_lengths": (rows,) if prefill else None,
    }


def _candidate_blocks(rows: int, context: int) -> Tensor:
    """Distinct blocks, ascending, the newest among them."""
    blocks = context // CANDIDATE_SIZE
    order = torch.rand(rows, blocks, device="cuda")
    order[:, -1] = 2.0
    return torch.topk(order, CANDIDATES, -1).indices.sort(-1).values.to(torch.int32)


def _check_scores(prefill: bool) -> float:
    """Share of scores beyond the contract's tolerance, against the op's own definition run by torch on the GPU."""
    rows, context = (12, 2048) if prefill else (3, 4096)
    step = _steps(rows, context, prefill=prefill, count=1)[0]
    step["visible"] = step["visible"] - torch.arange(rows, dtype=torch.int32, device="cuda") * 5
    actual, expected = run_index_scores(**step).float(), _reference_scores(step).float()
    hidden = expected == -torch.inf
    wrong = (actual - expected).abs() > 2**-5 * expected.abs() + 0.05
    return float(torch.where(hidden, actual != expected, wrong).float().mean())


def _reference_scores(step: dict[str, Any]) -> Tensor:
    from deepinfer_core.ops.indexer.index_scores import index_scores

    return index_scores.reference(**step)


def _check_top_k(rows: int, width: int) -> float:
    """Rows with any wrong column: numbers with many ties, and lengths of all kinds."""
    from deepinfer_core.ops.indexer.top_k import top_k

    wrong = 0.0
    for scores in (torch.randn(rows, width, device="cuda"), torch.randint(-3, 4, (rows, width), device="cuda")):
        values = scores.to(torch.bfloat16)
        lengths = torch.randint(0, width + 1, (rows,), dtype=torch.int32, device="cuda")
        lengths[0] = width
        expected = top_k.reference(values, lengths, k=TOP_K)
        wrong += float((run_top_k(values, lengths, k=TOP_K) != expected).any(-1).float().sum())
    return wrong


def _check_select(context: int) -> float:
    """Elements that differ from a selection from the kernel's own scores."""
    from deepinfer_core.ops.indexer.top_k import block_maximum, top_k

    wrong = 0
    for prefill in (False, True):
        rows = 9 if prefill else 2
        step = _steps(rows, context, prefill=prefill, count=1)[0]
        step["visible"] = step["visible"] - 3 * torch.arange(rows, dtype=torch.int32, device="cuda") - 1
        entries, blocks = run_select_entries(
            **step, k=TOP_K, candidate_blocks=CANDIDATES, candidate_block_size=CANDIDATE_SIZE
        )
        scores = run_index_scores(**step)
        best, counts = block_maximum.reference(scores, step["visible"], block_size=CANDIDATE_SIZE)
        wrong += int((entries != top_k.reference(scores, step["visible"], k=TOP_K)).sum())
        wrong += int((blocks != top_k.reference(best, counts, k=CANDIDATES)).sum())
    return float(wrong)


def _check_within(context: int) -> float:
    """Elements that differ from a selection from the kernel's own scores of all entries."""
    from deepinfer_core.ops.indexer.top_k import candidate_scores, expand_candidates, top_k

    step = _steps(2, context, count=1)[0]
    step["visible"] = step["visible"] - 3
    chosen = _candidate_blocks(2, context)
    entries = run_select_within_candidates(**step, candidates=chosen, k=TOP_K, candidate_block_size=CANDIDATE_SIZE)
    scores = run_index_scores(**step)
    compact, lengths = candidate_scores.reference(scores, step["visible"], chosen, block_size=CANDIDATE_SIZE)
    columns = top_k.reference(compact, lengths, k=TOP_K)
    return float((entries != expand_candidates.reference(columns, chosen, block_size=CANDIDATE_SIZE)).sum())
