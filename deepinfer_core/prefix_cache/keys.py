"""Names of what a prefix cache holds: one hash for each block, chained, so that a key stands for the whole prefix.

A key is 128 bits of BLAKE2b: among 10^12 blocks the chance that any two share a key is below 10^-14, and to find two on
purpose takes about 2^64 trials.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b

from deepinfer_core.errors import require

KEY_BYTES = 16
"""Length of every key and of an identity's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheIdentity:
    """Everything but the token ids that the bytes of a cached block depend on. Two that differ never share a block.

    An engine makes one without adapter and images, for :class:`~deepinfer_core.prefix_cache.disk_tier.DiskTier`, and
    for each request a copy with those of the request, for :func:`root_key`.

    Attributes:
        tokenizer: What tells tokenizers apart, such as a digest of the file.
        model: The same for the config and the weights together.
        numerics: Name of the arithmetic, and whatever else changes results (batch invariance, truncation of prompts).
        cache_layout: Formats and sizes of a block, and how the caller packs a payload.
        adapter: The same for an adapter; empty for none.
        images: A digest of each image of the prompt as the model sees it, in order; placeholder tokens are all alike.
            At least 64 bits each.
    """

    tokenizer: str
    model: str
    numerics: str
    cache_layout: str
    adapter: str = ""
    images: tuple[str, ...] = ()

    def digest(self) -> bytes:
        """128 bits that stand for all fields."""
        text = json.dumps(astuple(self))  # a list of strings, quoted: no two records give the same text
        return blake2b(text.encode(), digest_size=KEY_BYTES, person=b"identity 1").digest()


def root_key(identity: CacheIdentity) -> bytes:
    """The parent of a first block."""
    return identity.digest()


def extend(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a block.

    Args:
        parent: Key of the block before it, or the root.
        token_ids: Those of the block; each fits into 32 bits.

    Returns:
        16 bytes.
    """
    return _extend(parent, _packed(token_ids))


def chain(root: bytes, token_ids: Sequence[int], block_tokens: int) -> list[bytes]:
    """The keys of all full blocks of a prompt, in order; what follows the last full block has none.

    Args:
        root: From :func:`root_key`.
        token_ids: The prompt.
        block_tokens: Tokens in a block.
    """
    require(block_tokens > 0, f"a block of {block_tokens} tokens was asked for")
    packed = memoryview(_packed(token_ids))
    step = 4 * block_tokens
    keys: list[bytes] = []
    parent = root
    for start in range(0, len(packed) - step + 1, step):
        parent = _extend(parent, packed[start : start + step])
        keys.append(parent)
    return keys


def derive(key: bytes, label: str) -> bytes:
    """A key for something else at the same place, such as the snapshot of the rings that belongs to a block."""
    return blake2b(key + label.encode(), digest_size=KEY_BYTES, person=b"derived 1").digest()


def _extend(parent: bytes, packed: bytes | memoryview) -> bytes:
    require(len(parent) == KEY_BYTES, f"a parent key of {len(parent)} bytes was given")
    state = blake2b(parent, digest_size=KEY_BYTES, person=b"block 1")
    state.update(packed)
    return state.digest()


def _packed(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32, whatever the machine, so that keys can be compared between machines."""
    packed = array("i", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
