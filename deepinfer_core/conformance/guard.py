"""Arguments on the device, each inside a larger buffer whose margins must keep their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.device import Device
from deepinfer_core.conformance.check import ConformanceFailure
from deepinfer_core.conformance.values import as_bytes, replace_tensors, tensors

GUARD_BYTE = 0xFF
"""NaN in every float type and -1 in every integer type: reading a margin shows in the result."""

_ALIGNMENT_BYTES = 256
_LEAST_MARGIN_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guarded:
    """One tensor of the arguments: where it lies in its buffer, and what it held at first."""

    parameter: str
    label: str
    buffer: Tensor
    start: int
    length: int
    view: Tensor
    original: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Arguments of one call on the device.

    Attributes:
        arguments: By parameter name; tensors are views into guarded buffers.
    """

    arguments: dict[str, Any]
    _guarded: tuple[_Guarded, ...]

    def verify(self, mutates: tuple[str, ...]) -> None:
        """Raise unless all margins, and all tensors not named in ``mutates``, are as they were.

        Raises:
            ConformanceFailure: Naming the tensor and the first byte or coordinate that changed.
        """
        for guarded in self._guarded:
            _verify_margins(guarded)
            if guarded.parameter not in mutates:
                _verify_unchanged(guarded)

    def overwrite(self, inputs: Mapping[str, Any]) -> None:
        """Copy other inputs of the same shapes into the buffers, as an engine does before it replays a graph."""
        for name, value in inputs.items():
            for (_, target), (_, source) in zip(tensors(self.arguments[name], name), tensors(value, name), strict=True):
                target.copy_(source)


def place(inputs: Mapping[str, Any], device: Device, *, row_gap: bool = False) -> Placement:
    """Upload inputs, guarded.

    Args:
        inputs: Host tensors by parameter name.
        device: Where they go.
        row_gap: Leave a guarded gap after each row of a tensor of two or more axes, as in a slice of a wider tensor.
    """
    guarded: list[_Guarded] = []
    arguments: dict[str, Any] = {}
    for name, value in inputs.items():
        placed = [_guard(name, label, tensor, device, row_gap) for label, tensor in tensors(value, name)]
        views = iter([one.view for one in placed])
        arguments[name] = replace_tensors(value, lambda _, views=views: next(views))
        guarded += placed
    return Placement(arguments=arguments, _guarded=tuple(guarded))


def _guard(parameter: str, label: str, tensor: Tensor, device: Device, row_gap: bool) -> _Guarded:
    size, stride = tuple(tensor.shape), _strides(tensor, row_gap)
    item = tensor.element_size()
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if tensor.numel() else 0
    row_bytes = stride[0] * item if stride else item
    margin = -(-max(_LEAST_MARGIN_BYTES, row_bytes) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    length = span * item
    host = torch.full((margin + length + margin,), GUARD_BYTE, dtype=torch.uint8)
    _view(host, margin, length, tensor.dtype, size, stride).copy_(tensor)
    buffer = device.upload(host)
    view = _view(buffer, margin, length, tensor.dtype, size, stride)
    original = tensor.clone()
    return _Guarded(
        parameter=parameter, label=label, buffer=buffer, start=margin, length=length, view=view, original=original
    )


def _strides(tensor: Tensor, row_gap: bool) -> tuple[int, ...]:
    """The tensor's own strides, or a dense copy's where elements overlap; with a gap after each row if asked for."""
    own = tensor.stride()
    overlaps = any(s == 0 and n > 1 for n, s in zip(tensor.shape, own, strict=True))
    strides = tensor.contiguous().stride() if overlaps or not tensor.numel() else own
    if row_gap and len(strides) > 1:
        gap = _ALIGNMENT_BYTES // tensor.element_size()
        strides = (strides[0] + gap, *strides[1:])
    return tuple(strides)


def _view(
    buffer: Tensor, start: int, length: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    """The tensor of this type and layout whose bytes begin at ``start``; strides count elements."""
    region = buffer[start : start + length].view(dtype)
    return region.as_strided(size, stride)


def _verify_margins(guarded: _Guarded) -> None:
    """Everything in the buffer but the tensor itself still holds the guard byte."""
    view, found = guarded.view, guarded.buffer.cpu()
    expected = torch.full_like(found, GUARD_BYTE)
    _view(expected, guarded.start, guarded.length, view.dtype, tuple(view.shape), view.stride()).copy_(view.cpu())
    changed = (found != expected).nonzero()
    if len(changed):
        offset = int(changed[0]) - guarded.start
        where = f"{-offset} bytes before" if offset < 0 else f"{offset} bytes after"
        raise ConformanceFailure(
            f"wrote outside {guarded.label}: {len(changed)} guard bytes changed, the first {where} its start"
        )


def _verify_unchanged(guarded: _Guarded) -> None:
    now = guarded.view.cpu()
    changed = (as_bytes(now) != as_bytes(guarded.original)).any(1).nonzero()
    if len(changed):
        coordinate = tuple(int(i) for i in torch.unravel_index(changed[0, 0], now.shape))
        raise ConformanceFailure(
            f"changed its input {guarded.label}, which the contract does not list in mutates: {len(changed)} elements, "
            f"the first at {coordinate} from {guarded.original[coordinate].item()} to {now[coordinate].item()}"
        )
