"""Rows of a token mask in the host's memory: ``ceil(V / 32)`` words of int32.

Bit ``v % 32`` of word ``v // 32`` is set where token v is allowed. The format is that of the op
``sampling.apply_token_mask``. A row is a contiguous numpy array or CPU tensor that its owner allocated once, pinned
if a device copies from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer_core.errors import require

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    MaskArray = NDArray[np.int32] | Tensor
    """One row ``[ceil(V / 32)]`` or several ``[R, ceil(V / 32)]``, int32, contiguous, in the host's memory."""

WORD_BITS = 32
WORD_BYTES = 4


def num_mask_words(vocab_size: int) -> int:
    """Words of one row."""
    return -(-vocab_size // WORD_BITS)


def words_of(mask: MaskArray) -> NDArray[np.int32]:
    """The mask as a numpy array over the same memory."""
    words = mask if isinstance(mask, np.ndarray) else mask.numpy()
    require(words.dtype == np.int32, f"a token mask has elements of {words.dtype}, not int32")
    require(words.flags.c_contiguous, "a token mask is not contiguous")
    return words


def allow_all(row: NDArray[np.int32]) -> None:
    """Allow every token, in place."""
    row.fill(-1)


def allow_only(row: NDArray[np.int32], token: int) -> None:
    """Allow one token, in place."""
    row.fill(0)
    row.view(np.uint32)[token // WORD_BITS] = np.uint32(1 << token % WORD_BITS)
