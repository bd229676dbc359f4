"""``attention`` over FlashMLA: sparse attention of prompt rows and of decode rows.

The library returns bfloat16, so a result that the op wants unrounded has been rounded once; the op's tolerance allows
it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import attribute_in, one_of
from deepinfer_core.tensor import Cache
from deepinfer_cuda.ops.sm100.layouts import pages_of
from deepinfer_cuda.ops.sm100.libraries import FLASH_MLA_LIMITS, NOTE, Library, flash_mla

_WIDTH = 512
_INDEX_UNIT = 128
"""Listed keys are read in tiles of 64 or 128, depending on the kernel that the library picks."""


def run_sparse_prefill(
    query: Tensor,
    window_rows: Tensor,
    window_indices: Tensor,
    sink: Tensor,
    context_rows: Tensor | None = None,
    context_indices: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
    library: Library = flash_mla,
) -> Tensor:
    """``attention.sparse_prefill``; window and compressed rows become one list of keys.

    Args:
        query: Rotated queries.
        window_rows: See the op.
        window_indices: See the op.
        sink: See the op.
        context_rows: See the op.
        context_indices: See the op.
        scale: See the op.
        round_probabilities: True, by a limit.
        out: ``bf16``, or ``f32`` for the same numbers widened.
        plan: Not used.
        library: Gives FlashMLA.
    """
    del round_probabilities, plan
    keys, indices = window_rows, window_indices
    if context_rows is not None and context_indices is not None:
        keys = torch.cat((window_rows, context_rows))
        shifted = torch.where(context_indices < 0, context_indices, context_indices + len(window_rows))
        indices = torch.cat((window_indices, shifted), 1)
    if not len(query) or not len(keys):
        return query.new_zeros(query.shape, dtype=TORCH_DTYPES[out])
    result, _, _ = library().flash_mla_sparse_fwd(
        query.contiguous(),
        keys.contiguous().unsqueeze(1),
        _listed(indices),
        scale,
        d_v=_WIDTH,
        attn_sink=sink.contiguous(),
    )
    return result.to(TORCH_DTYPES[out])


def run_sparse_decode(
    query: Tensor,
    window: Cache,
    window_slots: Tensor,
    sink: Tensor,
    context: Cache | None = None,
    context_slots: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
    library: Library = flash_mla,
) -> Tensor:
    """``attention.sparse_decode``; every row is a sequence of one query, since every row lists its own keys.

    The schedule is made anew at every call: one that is kept holds for equal shapes only, and layers differ in theirs.

    Args:
        query: Rotated queries.
        window: See the op.
        window_slots: See the op.
        sink: See the op.
        context: See the op.
        context_slots: See the op.
        scale: See the op.
        round_probabilities: True, by a limit.
        out: ``bf16``, or ``f32`` for the same numbers widened.
        plan: Not used.
        library: Gives FlashMLA.

    Raises:
        LayoutError: FlashMLA cannot read a cache in place; nothing is copied to make it fit.
    """
    del round_probabilities, plan
    window_pages = pages_of(window)
    context_pages = None if context is None else pages_of(context)
    if not len(query):
        return query.new_empty(query.shape, dtype=TORCH_DTYPES[out])
    module = library()
    schedule, _ = module.get_mla_metadata()
    result, _ = module.flash_mla_with_kvcache(
        query.contiguous().unsqueeze(1),
        window_pages,
        None,
        None,
        _WIDTH,
        schedule,
        softmax_scale=scale,
        causal=False,
        is_fp8_kvcache=True,
        indices=_listed(window_slots),
        attn_sink=sink.contiguous(),
        extra_k_cache=context_pages,
        extra_indices_in_kvcache=None if context_slots is None else _listed(context_slots),
        enable_batch_invariant=True,
    )
    return result.squeeze(1).to(TORCH_DTYPES[out])


def _listed(indices: Tensor) -> Tensor:
    """Indices ``[T, n]`` as ``[T, 1, n]``, filled up with -1 to whole tiles."""
    return pad(indices, (0, -indices.shape[1] % _INDEX_UNIT), value=-1).contiguous().unsqueeze(1)


_LIMITS = (
    *FLASH_MLA_LIMITS,
    one_of("N", 64, 128),
    one_of("D", _WIDTH),
    attribute_in("round_probabilities", True),
    attribute_in("out", "bf16", "f32"),
)

SPARSE_DECODE = Implementation(run_sparse_decode, _LIMITS, note=NOTE)
"""Not in the table: blocks and state slots of core's pools are padded to 128 bytes, which does not put them a whole
number of records apart (see ``pages_of``), so decode would be refused at its first step. The Triton kernel serves it.
"""

IMPLEMENTATIONS = {
    sparse_prefill: (Implementation(run_sparse_prefill, _LIMITS, note=NOTE),),
}
