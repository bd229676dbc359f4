"""Move a tree of parameter records to a device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    import torch

Record = TypeVar("Record")


def to_device(record: Record, device: torch.device) -> Record:
    """The same tree with every tensor on ``device``; nothing is copied when it is there already."""
    return _move(record, device)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_move(item, device) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _move(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        )
    return value
