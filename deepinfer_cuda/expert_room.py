"""Room of the expert layer: rows and inner rows take most of it, results that wait for their sum the rest.

All rows of a piece are multiplied at once, for an expert's weights are read once for each piece. Results of the second
maps, of which a row has one for each of its experts, would take 70 KiB a row at the released sizes: so they are made
and summed some channels at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.backend.interface import PlanRequest
from deepinfer_core.ops.limits import Site
from deepinfer_cuda.scratch import SCRATCH_BYTES, most_rows, piece_bytes, row_pieces

_RESULT_BYTES = SCRATCH_BYTES // 4
_ROW_BYTES = SCRATCH_BYTES - _RESULT_BYTES
_BF16 = 2
_PLACE_BYTES = 9
"""A pair's place in the order, its weight there, and its part in the list of tiles: three numbers for 16 rows."""
_EXPERT_BYTES = 12
"""The list of tiles has one entry of three numbers for each expert besides."""
_BLOCK = 256
"""Channels of a program of the second maps are at most so many (``tuning/moe.toml``), and divide them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRoom:
    """What the rows of one layer take.

    Attributes:
        hidden: Channels of a row.
        inner: Inner channels of an expert, the shared one included.
        slots: Routed experts of a row.
    """

    hidden: int
    inner: int
    slots: int

    @property
    def row_bytes(self) -> int:
        """A row in bf16, its inner rows with that of the shared expert, and its pairs' places."""
        return _BF16 * (self.hidden + (self.slots + 1) * self.inner) + _PLACE_BYTES * self.slots

    def pieces(self, num_rows: int) -> list[slice]:
        """Rows that are worked on at once."""
        return row_pieces(num_rows, self.row_bytes, _ROW_BYTES)

    def channels_at_once(self, num_rows: int) -> int:
        """Channels whose results are made before they are summed: all, or for many rows always the same part."""
        if self._result_bytes(num_rows) <= _RESULT_BYTES:
            return self.hidden
        return min(self._part, self.hidden)

    def workspace(self, num_rows: int, num_experts: int) -> int:
        """Bytes that a call with at most so many rows takes at once."""
        rows = piece_bytes(num_rows, self.row_bytes, _ROW_BYTES)
        most = min(num_rows, most_rows(self.row_bytes, _ROW_BYTES))
        part = _BF16 * (self.slots + 1) * most * min(self._part, self.hidden)
        return rows + min(self._result_bytes(most), max(_RESULT_BYTES, part)) + _EXPERT_BYTES * num_experts

    def _result_bytes(self, num_rows: int) -> int:
        return _BF16 * (self.slots + 1) * num_rows * self.hidden

    @property
    def _part(self) -> int:
        """Whole blocks of channels that fit with as many rows as there can be, one block at least."""
        channel_bytes = _BF16 * (self.slots + 1) * most_rows(self.row_bytes, _ROW_BYTES)
        return max(_RESULT_BYTES // (channel_bytes * _BLOCK), 1) * _BLOCK


def experts_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``moe.expert_layer``, and enough for ``moe.expert_mlp``."""
    hidden, inner, slots, experts = (site.sizes[axis] for axis in "HFKE")
    return ExpertRoom(hidden=hidden, inner=inner, slots=slots).workspace(request.rows, experts)
