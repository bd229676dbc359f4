"""Keys and payloads for tests of the tiers."""

from __future__ import annotations

import random
from hashlib import blake2b

from deepinfer_core.prefix_cache.keys import CacheIdentity

IDENTITY = CacheIdentity(tokenizer="t", model="m", numerics="released", cache_layout="l")


def key(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def payload(number: int, size: int | None = None) -> bytes:
    """Bytes that belong to a number alone, of a length that does too unless it is given."""
    source = random.Random(number)
    return source.randbytes(source.randrange(1, 400) if size is None else size)
