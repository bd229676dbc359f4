"""Numbers for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB")


def size(num_bytes: float) -> str:
    """Bytes in the largest power of 1024 that leaves a number of at least 1, up to GiB; may be negative."""
    amount, unit = float(num_bytes), _UNITS[0]
    for larger in _UNITS[1:]:
        if abs(amount) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
