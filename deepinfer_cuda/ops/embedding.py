"""``embedding``: token ids to rows, rows to vocabulary logits."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation, PlanRequest, no_workspace
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.embedding.pending_tokens import PENDING, remember_tokens, resolve_tokens
from deepinfer_core.ops.embedding.token_embedding import token_embedding
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.limits import Site, attribute_in, dtype_in
from deepinfer_cuda.kernels.remember_tokens import remember_tokens_kernel
from deepinfer_cuda.kernels.resolve_tokens import resolve_tokens_kernel
from deepinfer_cuda.kernels.token_embedding import token_embedding_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops.linear import product, product_bytes
from deepinfer_cuda.ops.linear_weight import pack_linear
from deepinfer_cuda.row_tiles import power_of_two
from deepinfer_cuda.scratch import piece_bytes

_WIDEST_PIECE = 2048
_ROWS = 256
"""Tokens of a program."""


def run_token_embedding(ids: Tensor, table: Tensor, *, out: str) -> Tensor:
    """``embedding.token_embedding``."""
    vocabulary, width = table.shape
    rows, stride = rows_of(table)
    result = torch.empty(ids.shape[0], width, dtype=TORCH_DTYPES[out], device=ids.device)
    block = min(power_of_two(width), _WIDEST_PIECE)
    launch(
        token_embedding_kernel,
        (ids.shape[0], -(-width // block)),
        ids.contiguous(),
        rows,
        result,
        vocabulary,
        stride,
        WIDTH=width,
        BLOCK=block,
    )
    return result


def run_resolve_tokens(
    ids: Tensor,
    compressed_ids: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    latest: Tensor,
    compressed_map: Tensor,
) -> tuple[Tensor, Tensor]:
    """``embedding.resolve_tokens``."""
    num_rows = ids.shape[0]
    tokens, compressed = (torch.empty(num_rows, dtype=torch.int32, device=ids.device) for _ in range(2))
    launch(
        resolve_tokens_kernel,
        (-(-num_rows // _ROWS),),
        *(ids.contiguous(), compressed_ids.contiguous(), row_sequence.contiguous(), state_slots.contiguous()),
        *(latest.contiguous(), compressed_map.contiguous(), tokens, compressed, num_rows),
        PENDING=PENDING,
        ROWS=_ROWS,
    )
    return tokens, compressed


def run_remember_tokens(token_ids: Tensor, slots: Tensor, latest: Tensor) -> None:
    """``embedding.remember_tokens``."""
    num_rows = token_ids.shape[0]
    launch(
        remember_tokens_kernel,
        (-(-num_rows // _ROWS),),
        *(token_ids.contiguous(), slots.contiguous(), latest, num_rows, latest.stride(0)),
        ROWS=_ROWS,
    )


def run_vocabulary_logits(x: Tensor, head: Tensor) -> Tensor:
    """``embedding.vocabulary_logits``."""
    return product(x, head, groups=1, out="f32")


def logits_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``embedding.vocabulary_logits``."""
    return piece_bytes(request.rows, product_bytes(site.sizes["V"], site.sizes["H"], 1, decoded=False))


IMPLEMENTATIONS = {
    remember_tokens: (Implementation(run_remember_tokens, row_invariant=True, workspace=no_workspace),),
    resolve_tokens: (Implementation(run_resolve_tokens, row_invariant=True, workspace=no_workspace),),
    token_embedding: (Implementation(run_token_embedding, (attribute_in("out", "bf16", "f32"),), row_invariant=True),),
    vocabulary_logits: (
        Implementation(
            run_vocabulary_logits, (dtype_in("bf16"),), pack=pack_linear, row_invariant=True, workspace=logits_workspace
        ),
    ),
}
