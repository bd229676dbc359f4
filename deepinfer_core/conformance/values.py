"""Tensors inside arguments and results: quantised tensors, caches and tuples hold several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import InternalError

_PLAIN = (type(None), bool, int, float, str)


def tensors(value: Any, label: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside ``value`` with a label such as ``cache.storage`` or ``result[1]``."""
    if isinstance(value, Tensor):
        yield label, value
    elif isinstance(value, tuple | list):
        for position, item in enumerate(value):
            yield from tensors(item, f"{label}[{position}]")
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from tensors(getattr(value, part.name), f"{label}.{part.name}")
    elif not isinstance(value, _PLAIN):
        raise InternalError(f"{label}: the conformance kit cannot look into a {type(value).__name__}")


def replace_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of ``value`` in which every tensor is what ``change`` makes of it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        items = [replace_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: replace_tensors(item, change) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: replace_tensors(getattr(value, f.name), change) for f in dataclasses.fields(value)}
        return type(value)(**parts)
    return value


def to_host(value: Any) -> Any:
    """``value`` with its own copy of every tensor on the host."""
    return replace_tensors(value, lambda t: t.detach().to("cpu", copy=True))


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in row-major order, one row per element: ``[elements, bytes per element]``."""
    flat = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())
