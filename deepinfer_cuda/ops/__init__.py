"""Adapters of one op family each: the contract of core in, a launch of a kernel out."""

from __future__ import annotations

from dataclasses import replace

from deepinfer_core.backend.interface import Implementation, OpTable, no_workspace
from deepinfer_cuda.ops import (
    attention,
    embedding,
    engram,
    hyper_connection,
    indexer,
    kv_cache,
    linear,
    moe,
    norm,
    quantize,
    rotary,
    sampling,
    sm100,
    speculation,
)

_FAMILIES = (
    attention,
    embedding,
    engram,
    hyper_connection,
    indexer,
    kv_cache,
    linear,
    moe,
    norm,
    quantize,
    rotary,
    sampling,
    speculation,
)


def _stated(implementation: Implementation) -> Implementation:
    """With its workspace: an adapter that states none asks for nothing but its results, and the kit checks that."""
    return replace(implementation, workspace=implementation.workspace or no_workspace)


_TRITON = {op: tuple(map(_stated, found)) for family in _FAMILIES for op, found in family.IMPLEMENTATIONS.items()}

TABLE = OpTable({**_TRITON, **{op: found + _TRITON.get(op, ()) for op, found in sm100.IMPLEMENTATIONS.items()}})
"""Every implementation of the backend; each family's module lists its own. Libraries for SM100 come before Triton."""
