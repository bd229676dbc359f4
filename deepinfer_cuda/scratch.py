"""Room that an op takes for itself: so many bytes at most, and the pieces into which its rows are cut for that."""

from __future__ import annotations

SCRATCH_BYTES = 512 << 20
"""The most that one call of an op takes besides its results; a call that would need more works piece by piece."""
_UNIT = 256
"""Rows of a piece are a multiple of this, so that no tile of a matrix product is cut."""


def row_pieces(num_rows: int, bytes_per_row: int, room: int = SCRATCH_BYTES) -> list[slice]:
    """Rows cut into pieces of about the same size, each of which fits; a single one when all rows fit.

    Args:
        num_rows: Rows of the call.
        bytes_per_row: What a row takes at most while its piece is worked on.
        room: Bytes that there are for the rows of a piece.
    """
    count = max(-(-num_rows // most_rows(bytes_per_row, room)), 1)
    size = -(-num_rows // (count * _UNIT)) * _UNIT
    return [slice(begin, min(begin + size, num_rows)) for begin in range(0, num_rows, size)] if num_rows else []


def piece_bytes(num_rows: int, bytes_per_row: int, room: int = SCRATCH_BYTES) -> int:
    """What the pieces of so many rows, or of fewer, take one after the other: the most of any of them."""
    return min(num_rows, most_rows(bytes_per_row, room)) * bytes_per_row


def most_rows(bytes_per_row: int, room: int = SCRATCH_BYTES) -> int:
    """Rows that fit at once; never less than one unit."""
    return max(room // max(bytes_per_row, 1) // _UNIT, 1) * _UNIT
