"""Native implementations of the CPU backend, op by op; everything that is not listed runs by its reference."""

from __future__ import annotations

from deepinfer_core.backend.interface import OpTable

TABLE = OpTable({})
