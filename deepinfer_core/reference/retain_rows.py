"""Part of the rows of a step on the CPU; the definition is at the op."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def run_retain_rows(streams: Tensor, mix: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """``hyper_connection.retain_rows``: copies of memory in torch's own threads."""
    return streams.index_select(0, rows), mix.index_select(0, rows)
