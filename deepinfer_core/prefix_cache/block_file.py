"""The file format of the disk tier: a header that says whose bytes these are, then the payload.

Little-endian, without padding:

======== ======= ===============================
offset   bytes   meaning
======== ======= ===============================
0        8       magic
8        4       format version
12       16      digest of the engine's identity
28       16      key
44       8       bytes of the payload
52       4       CRC-32 of the payload
56       ...     payload, to the end of the file
======== ======= ===============================

What comes before the checksum is compared with what is expected, field by field, so it needs none.
A CRC is enough here. It is to find accidents, not attacks: it finds every change within 32 bits in a row and lets pass
one in 2^32 of the others. BLAKE2b would take four times as long, which a hit on a long prompt would feel
(docs/prefix-cache.md).
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, cast

MAGIC = b"DIPREFIX"
VERSION = 1
_HEADER = struct.Struct("<8sI16s16sQI")
HEADER_BYTES = _HEADER.size

WriteFile: TypeAlias = Callable[[Path, Sequence[bytes]], None]
"""Makes a file of these pieces, whole or not at all; raises OSError."""


class UnusableFile(Exception):
    """A file that is not what its name says; ``kind`` is the same for all files with the same defect."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(kind)


def header(identity: bytes, key: bytes, payload: bytes) -> bytes:
    """The bytes that come before a payload."""
    return _HEADER.pack(MAGIC, VERSION, identity, key, len(payload), zlib.crc32(payload))


def read(path: Path, identity: bytes, key: bytes) -> bytes:
    """The payload of a file.

    Raises:
        UnusableFile: The file is cut short, changed, of another format, or belongs to another engine or key.
        OSError: It is not there, or the disk fails.
    """
    with path.open("rb", buffering=0) as file:
        start = file.read(HEADER_BYTES)
        num_payload_bytes = os.fstat(file.fileno()).st_size - HEADER_BYTES
        checksum = _check(start, identity, key, num_payload_bytes)  # before memory is taken for what may be anything
        payload = file.readall()
    if len(payload) != num_payload_bytes or checksum != zlib.crc32(payload):
        raise UnusableFile("corrupt: its checksum is wrong")
    return payload


def write_whole(path: Path, pieces: Sequence[bytes]) -> None:
    """Write a temporary file beside ``path`` and rename it, so that no reader ever sees a part of it.

    Nothing is forced to the disk: what a power failure leaves behind has a wrong checksum, which makes it a miss.

    Raises:
        OSError: It could not be written; no file is left behind.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  # a descriptor, not a path
            for piece in pieces:
                _write_all(file.fileno(), piece)
        os.replace(temporary, path)  # noqa: PTH105  # names, as mkstemp gives them
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise


def _check(start: bytes, identity: bytes, key: bytes, num_payload_bytes: int) -> int:
    """Raise unless a header is the expected one; returns the checksum in it."""
    if len(start) < HEADER_BYTES:
        raise UnusableFile("truncated: it ends inside its header")
    magic, version, its_identity, its_key, its_payload_bytes, checksum = _HEADER.unpack(start)
    if magic != MAGIC:
        raise UnusableFile("no file of a prefix cache: its first bytes are others")
    if version != VERSION:
        raise UnusableFile(f"of another format version than {VERSION}")
    if its_identity != identity:
        raise UnusableFile("foreign: another model, tokenizer, arithmetic or cache layout wrote it")
    if its_key != key:
        raise UnusableFile("misplaced: it belongs to another key")
    if its_payload_bytes != num_payload_bytes:
        raise UnusableFile("truncated or too long: its length is not the one in its header")
    return cast(int, checksum)


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
