"""The sampler at the released vocabulary, and what speculation adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from measure import Measurement
from row_inputs import HIDDEN, differing_bytes, integers, normal, relative_error, rotated
from torch import Tensor

from deepinfer_core.ops.sampling.apply_logit_bias import apply_logit_bias
from deepinfer_core.ops.sampling.apply_penalties import apply_penalties
from deepinfer_core.ops.sampling.apply_token_mask import apply_token_mask
from deepinfer_core.ops.sampling.finite_rows import finite_rows
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.random import DRAW
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.sampling.top_logprobs import top_logprobs
from deepinfer_core.ops.speculation.accept_prefix import accept_prefix
from deepinfer_core.ops.speculation.choose_lengths import choose_lengths
from deepinfer_core.ops.speculation.confidence import confidence
from deepinfer_core.ops.speculation.draft_features import draft_features
from deepinfer_core.ops.speculation.markov_logits import markov_logits
from deepinfer_core.ops.speculation.verify import verify
from deepinfer_cuda.ops import TABLE

_VOCAB = 129280
_RANK = 256
_ROW_BYTES = 4 * _VOCAB

Args = tuple[Any, ...]


def measurements() -> Iterator[Measurement]:
    """Every op at 1, 64 and 256 rows (384 rows of 64 sequences when drafts are verified)."""
    for rows in (1, 64, 256):
        yield from _changes(rows)
        yield from _choices(rows)
        yield from _drafts(rows)


def _measure(
    op: Any, rows: int, num_bytes: float, make: Callable[[], Args], *, name: str = "", tolerance: float = 0.0,
    peer: Callable[..., Any] | None = None, flop: float = 0.0, **attributes: Any,
) -> Measurement:  # fmt: skip
    """One op, timed on rotated inputs and compared with its reference on this GPU (bytes where ``tolerance`` is 0)."""
    run = TABLE.of(op)[0].run

    def work(function: Callable[..., Any], **given: Any) -> Callable[[], Any]:
        args = make()
        return lambda: function(*args, **given)

    def check() -> float:
        args = make()
        compare = relative_error if tolerance else differing_bytes
        return compare(_finite(run(*args, **attributes)), _finite(op.reference(*args, **attributes)))

    return Measurement(
        group=op.family,
        name=name or op.name.split(".")[1],
        shape=f"rows={rows}",
        bytes=num_bytes,
        flop=flop,
        make=rotated(lambda: work(run, **attributes), num_bytes),
        peer=rotated(lambda: work(peer), num_bytes) if peer else None,
        check=check,
        tolerance=tolerance,
    )


def _finite(value: Any) -> Any:
    """Results with -inf as a large number, so that norms exist."""
    if isinstance(value, Tensor):
        return value.nan_to_num(neginf=-1e4) if value.dtype == torch.float32 else value
    return [_finite(part) for part in value]


def _logits(rows: int) -> Tensor:
    """Scores of a model that is rather sure: a few tokens have most of the mass."""
    return normal(rows, _VOCAB, dtype=torch.float32) * 2.5


def _floats(rows: int, low: float, high: float) -> Tensor:
    return torch.rand(rows, device="cuda") * (high - low) + low


def _changes(rows: int) -> Iterator[Measurement]:
    moved = 2.0 * rows * _ROW_BYTES

    def bias() -> Args:
        ids = torch.rand(rows, _VOCAB, device="cuda").topk(64).indices.to(torch.int32)
        return _logits(rows), ids, normal(rows, 64, dtype=torch.float32)

    def mask() -> Args:
        return _logits(rows), torch.randint(-(2**31), 2**31, (rows, _VOCAB // 32), device="cuda", dtype=torch.int32)

    def penalties() -> Args:
        counts = (integers(100, rows, _VOCAB) - 97).clamp(min=0)
        factors = (_floats(rows, 0.5, 2.0), _floats(rows, -1.0, 1.0), _floats(rows, -1.0, 1.0))
        return _logits(rows), counts, integers(2, rows, _VOCAB).bool(), *factors

    yield _measure(apply_logit_bias, rows, moved, bias)
    yield _measure(apply_token_mask, rows, moved + rows * _VOCAB / 8, mask)
    yield _measure(apply_penalties, rows, moved + rows * _VOCAB * 5.0, penalties, tolerance=1e-6)


def _choices(rows: int) -> Iterator[Measurement]:
    read = float(rows * _ROW_BYTES)

    def temperature() -> Args:
        return _logits(rows), _floats(rows, 0.5, 1.2)

    def draws() -> Args:
        seeds = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
        return _logits(rows).log_softmax(-1), seeds, integers(1 << 20, rows)

    ones = lambda value, dtype=torch.float32: torch.full((rows,), value, device="cuda", dtype=dtype)  # noqa: E731
    yield _measure(finite_rows, rows, read, lambda: (_logits(rows),), peer=lambda x: torch.isfinite(x).all(-1))
    yield _measure(greedy, rows, read, lambda: (_logits(rows),), peer=lambda x: x.argmax(-1))
    yield _measure(
        process_logits, rows, 2 * read, temperature, name="temperature", tolerance=1e-5,
        peer=lambda x, t: (x / t.unsqueeze(-1)).log_softmax(-1),
    )  # fmt: skip
    filters = {
        "top_k 50": (ones(50, torch.int32), None, None),
        "top_p 0.95": (None, ones(0.95), None),
        "top_k, top_p, min_p": (ones(50, torch.int32), ones(0.95), ones(0.02)),
    }
    for name, given in filters.items():
        yield _measure(
            process_logits, rows, 2 * read, lambda given=given: (*temperature(), *given), name=name, tolerance=1e-5,
            peer=lambda x, t, *_: (x / t.unsqueeze(-1)).sort(-1, descending=True),
        )  # fmt: skip
    yield _measure(sample, rows, read, draws, purpose=DRAW, peer=lambda x, *_: x.exp().multinomial(1))
    yield _measure(
        top_logprobs, rows, read, lambda: (_logits(rows), integers(_VOCAB, rows)), n=20, tolerance=1e-5,
        peer=lambda x, _: x.log_softmax(-1).topk(20),
    )  # fmt: skip


def _drafts(rows: int) -> Iterator[Measurement]:
    def judged() -> Args:
        target, draft = _logits(rows).log_softmax(-1), _logits(rows).log_softmax(-1)
        seeds = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
        return target, draft.argmax(-1).int(), draft, seeds, integers(1 << 20, rows)

    def corrected() -> Args:
        return _logits(rows), integers(_VOCAB, rows), normal(_VOCAB, _RANK), normal(_VOCAB, _RANK)

    def trusted() -> Args:
        return normal(rows, HIDDEN), integers(_VOCAB, rows), normal(_VOCAB, _RANK), normal(1, HIDDEN + _RANK)

    def lengths() -> Args:
        budget = torch.full((1,), 3 * rows, device="cuda", dtype=torch.int32)
        return torch.rand(rows, 5, device="cuda"), integers(6, rows), budget

    yield _measure(verify, rows, 2.0 * rows * _ROW_BYTES, judged, tolerance=1e-4)
    yield _measure(
        markov_logits, rows, 2.0 * rows * _ROW_BYTES + 2 * _VOCAB * _RANK, corrected, tolerance=1e-5,
        flop=2.0 * rows * _VOCAB * _RANK, peer=lambda base, ids, rank, head: base + rank[ids.long()] @ head.t(),
    )  # fmt: skip
    yield _measure(confidence, rows, rows * 2.0 * (HIDDEN + _RANK), trusted, tolerance=1e-4)
    yield _measure(draft_features, rows, rows * 10.0 * HIDDEN, lambda: (normal(rows, 4, HIDDEN),), tolerance=4e-3)
    yield _measure(choose_lengths, rows, rows * 28.0, lengths)
    yield _measure(accept_prefix, rows, rows * 17.0, lambda: (integers(2, rows, 5).bool(), integers(1 << 20, rows)))
