"""Lazy access to stored tensors; shards are opened on first use and mapped, not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import safetensors

from deepinfer_core.weights.index import CheckpointIndex

if TYPE_CHECKING:
    from torch import Tensor


class TensorSource(Protocol):
    """Where weights come from: a checkpoint, or a generator of random ones."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of a published name, with the element type and shape of the format."""
        ...


class TensorReader:
    """Tensors of a checked checkpoint, by published name.

    A tensor is a view of the mapped file: its pages are read when they are touched, and stay shared with the file.
    """

    def __init__(self, index: CheckpointIndex) -> None:
        self._index = index
        self._shards: dict[str, Any] = {}

    def tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        stored = self._index.tensors[name]
        return self._shard(name).get_tensor(stored.stored_name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop`` (exclusive) of a tensor; nothing else is read."""
        stored = self._index.tensors[name]
        return self._shard(name).get_slice(stored.stored_name)[start:stop]

    def _shard(self, name: str) -> Any:
        path = self._index.tensors[name].shard
        if path.name not in self._shards:
            self._shards[path.name] = safetensors.safe_open(path, framework="pt", device="cpu")
        return self._shards[path.name]
