"""Forbid tokens by a bit mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance

WORD_BITS = 32


def num_mask_words(vocab_size: int) -> int:
    """Words in one row of a token mask."""
    return -(-vocab_size // WORD_BITS)


@op("sampling.apply_token_mask", tolerance=Tolerance.exact(), row_axis="T")
def apply_token_mask(
    logits: Annotated[Tensor, Shape("T", "V"), Dtypes("f32")],
    mask: Annotated[Tensor, Shape("T", "_"), Dtypes("i32")],
) -> Tensor:
    """Return the logits with -inf for every token that is not allowed.

    Args:
        logits: Scores before temperature.
        mask: ``ceil(V / 32)`` words a row; token ``v`` is allowed when bit ``v % 32`` of word ``v // 32`` is set.
            Bits from ``V`` on are ignored.

    Raises:
        ShapeError: The mask was made for another vocabulary.
    """
    vocab_size = logits.shape[-1]
    if mask.shape[-1] != num_mask_words(vocab_size):
        raise ShapeError(
            f"sampling.apply_token_mask: mask has {mask.shape[-1]} words a row, V={vocab_size} needs "
            f"{num_mask_words(vocab_size)}; make the mask for the vocabulary of the logits"
        )
    bit = torch.arange(WORD_BITS, device=mask.device, dtype=torch.int32)
    allowed = ((mask.unsqueeze(-1) >> bit) & 1).flatten(1)[:, :vocab_size]
    return logits.masked_fill(allowed == 0, -torch.inf)


def _random_mask(draw: Draw) -> dict[str, Tensor]:
    words = num_mask_words(draw.sizes["V"])
    return {"mask": draw.integers(-(2**31), 2**31, "T", words)}


def _edges(draw: Draw) -> dict[str, Tensor]:
    """Nothing allowed, everything allowed, only the sign bit of each word, only token 0."""
    rows = torch.tensor([0, -1, -(2**31), 0], dtype=torch.int32)
    mask = rows.unsqueeze(-1).repeat(1, num_mask_words(draw.sizes["V"]))
    mask[3, 0] = 1
    return {"mask": mask}


@apply_token_mask.cases
def _cases() -> Iterator[Case]:
    yield Case("released_vocabulary", T=2, V=129280, make=_random_mask, required=True, bench=True)
    yield Case("no_rows", T=0, V=64, make=_random_mask, required=True)
    yield Case("partial_word", T=5, V=67, make=_random_mask, required=True)
    yield Case("less_than_a_word", T=3, V=7, make=_random_mask)
    yield Case("edges", T=4, V=96, make=_edges, required=True)
    yield ErrorCase("rows", T=2, V=64, make=_random_mask, stretch=("mask", "T"), raises=ShapeError, match="T=3")
    yield ErrorCase(
        "bytes",
        T=2,
        V=64,
        make=_random_mask,
        spoil=lambda a: a.update(mask=a["mask"].bool()),
        raises=DtypeError,
        match="bool",
    )
