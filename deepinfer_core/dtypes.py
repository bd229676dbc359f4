"""Element types and quantised formats by name; no tensor library is imported here.

A *format* says how numbers are stored in groups that share a scale (spec: model/03 and attention/04).
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATION_DTYPES = ("bf16", "f32", "f64")
"""Types in which activations may flow: released arithmetic, golden comparison, exact comparison."""

ITEM_BYTES = {
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "i8": 1,
    "u8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "bool": 1,
    "e4m3": 1,
    "e8m0": 1,
}


@dataclass(frozen=True, slots=True)
class Format:
    """A quantised format along the last axis.

    Attributes:
        name: How ops, caches and reports call it.
        element: ``e4m3`` (one byte) or ``e2m1`` (two to a byte, even channel in the low nibble).
        group: Consecutive channels that share one scale.
        scale: ``ue8m0`` (a power of two) or ``e4m3``; one byte each.
        rows: Consecutive rows that share one scale; 1 except for weights.
    """

    name: str
    element: str
    group: int
    scale: str
    rows: int = 1

    def record_bytes(self, width: int) -> int:
        """Bytes of one cached row of ``width`` channels: values and scales."""
        values = width if self.element == "e4m3" else width // 2
        return values + width // self.group


MXFP8 = Format("mxfp8", "e4m3", 32, "ue8m0")
MXFP4 = Format("mxfp4", "e2m1", 32, "ue8m0")
FP4_E4M3 = Format("fp4_e4m3", "e2m1", 16, "e4m3")
FP8_BLOCK32 = Format("fp8_block32", "e4m3", 32, "ue8m0", rows=32)

FORMATS = {f.name: f for f in (MXFP8, MXFP4, FP4_E4M3, FP8_BLOCK32)}
