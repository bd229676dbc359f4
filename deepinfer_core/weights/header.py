"""The header of one safetensors file: names, types, shapes and places of its tensors; no weight is read.

Layout (spec model/02 section 1): 8 bytes with the little-endian length of a JSON object, that object, the data.
Files are parsed here and not by a library so that an unreadable file can be told from a truncated one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

LENGTH_BYTES = 8
"""A file begins with the length of its header, in so many bytes, little-endian."""
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library; a longer header is not one."""

ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
"""Size of one element by its name in the header."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a header describes it.

    Attributes:
        stored_name: Its name in the header.
        shard: File that holds it.
        dtype: Element type in the words of the format, such as ``F8_E4M3``.
        shape: Its sizes; two FP4 values count as one byte.
        start_bytes: Where its data begins, counted from the end of the header.
        end_bytes: Where its data ends.
    """

    stored_name: str
    shard: Path
    dtype: str
    shape: tuple[int, ...]
    start_bytes: int
    end_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.end_bytes - self.start_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """All tensors of one file in stored order, and everything that is wrong with the file."""

    tensors: tuple[StoredTensor, ...]
    problems: tuple[str, ...]
    is_unreadable: bool = False


def read_header(shard: Path) -> Header:
    """Read the header of a file that exists; problems are collected, not raised."""
    try:
        with shard.open("rb") as file:
            return _read(shard, file, found_bytes=shard.stat().st_size)
    except OSError as error:
        return _unreadable(shard, f"not readable: {error.strerror}")


def _read(shard: Path, file: BinaryIO, found_bytes: int) -> Header:
    prefix = file.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        return _unreadable(shard, f"truncated: expected at least {LENGTH_BYTES} bytes, found {found_bytes}")
    header_bytes = int.from_bytes(prefix, "little")
    if header_bytes > MAX_HEADER_BYTES:
        return _unreadable(shard, f"not a safetensors file: it announces a header of {header_bytes} bytes")
    text = file.read(header_bytes)
    data_start = LENGTH_BYTES + header_bytes
    if len(text) < header_bytes:
        return _unreadable(shard, f"truncated in its header: expected at least {data_start} bytes, found {found_bytes}")
    return _parse(shard, text, data_start, found_bytes)


def _unreadable(shard: Path, problem: str) -> Header:
    return Header((), (f"shard {shard.name} is {problem}",), is_unreadable=True)


def _parse(shard: Path, text: bytes, data_start: int, found_bytes: int) -> Header:
    try:
        entries: object = json.loads(text)
    except ValueError as error:
        return _unreadable(shard, f"not readable: its header is not JSON ({error})")
    if not isinstance(entries, dict):
        return _unreadable(shard, "not readable: its header is not a JSON object")
    tensors: list[StoredTensor] = []
    problems: list[str] = []
    for name, entry in cast(Mapping[str, Any], entries).items():
        if name == "__metadata__":
            continue
        tensor = _tensor(shard, name, entry)
        if tensor is None:
            problems.append(
                f"shard {shard.name}: the header entry of {name} needs a dtype, a shape and two data_offsets"
            )
        else:
            tensors.append(tensor)
    problems += _wrong_sizes(tensors)
    problems += _wrong_extent(shard, tensors, data_start, found_bytes)
    return Header(tuple(tensors), tuple(problems))


def _tensor(shard: Path, name: str, entry: object) -> StoredTensor | None:
    """One header entry; ``None`` when it has not the form that the format wants."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if all(
            isinstance(size, int) and size >= 0 for size in cast(list[object], shape)
        ):
            return StoredTensor(name, shard, dtype, tuple(cast(list[int], shape)), start, end)
        case _:
            return None


def _wrong_sizes(tensors: list[StoredTensor]) -> list[str]:
    """Tensors whose bytes do not follow from their shape and type."""
    problems: list[str] = []
    for tensor in tensors:
        bits = ITEM_BITS.get(tensor.dtype)
        if bits is None:
            problems.append(f"{tensor.stored_name} in {tensor.shard.name} has the unknown dtype {tensor.dtype!r}")
        elif tensor.num_bytes * 8 != prod(tensor.shape) * bits:
            problems.append(
                f"{tensor.stored_name} in {tensor.shard.name} has {tensor.num_bytes} bytes; {tensor.dtype} "
                f"{list(tensor.shape)} needs {prod(tensor.shape) * bits // 8}"
            )
    return problems


def _wrong_extent(shard: Path, tensors: list[StoredTensor], data_start: int, found_bytes: int) -> list[str]:
    """The tensors must fill the data of the file without gaps or overlaps."""
    position = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start_bytes, tensor.end_bytes)):
        if tensor.start_bytes != position:
            where = f"{tensor.stored_name} starts at byte {tensor.start_bytes}, not {position}"
            return [f"shard {shard.name} is not readable: {where}"]
        position = tensor.end_bytes
    expected_bytes = data_start + position
    if found_bytes < expected_bytes:
        return [
            f"shard {shard.name} is truncated: expected {expected_bytes} bytes, found {found_bytes}; download it again"
        ]
    if found_bytes > expected_bytes:
        return [
            f"shard {shard.name} is too long: expected {expected_bytes} bytes, found {found_bytes}; download it again"
        ]
    return []
