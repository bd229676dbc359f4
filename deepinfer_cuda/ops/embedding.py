"""``embedding``: token ids to rows, rows to vocabulary logits."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.embedding.token_embedding import token_embedding
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.limits import attribute_in, dtype_in
from deepinfer_cuda.kernels.token_embedding import token_embedding_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops.linear import product
from deepinfer_cuda.ops.linear_weight import pack_linear
from deepinfer_cuda.row_tiles import power_of_two

_WIDEST_PIECE = 2048


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


def run_vocabulary_logits(x: Tensor, head: Tensor) -> Tensor:
    """``embedding.vocabulary_logits``."""
    return product(x, head, groups=1, out="f32")


IMPLEMENTATIONS = {
    token_embedding: (Implementation(run_token_embedding, (attribute_in("out", "bf16", "f32"),), row_invariant=True),),
    vocabulary_logits: (
        Implementation(run_vocabulary_logits, (dtype_in("bf16"),), pack=pack_linear, row_invariant=True),
    ),
}
