"""Cases: the inputs that every implementation of an op is tried with, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import ContractError, InternalError
from deepinfer_core.ops.declare import Op, TensorParameter

TORCH_DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64,
    "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "bool": torch.bool, "e4m3": torch.float8_e4m3fn,
}  # fmt: skip


class Draw:
    """A source of inputs, seeded by the case: the same numbers on every machine (made on the CPU)."""

    def __init__(self, seed: str, sizes: Mapping[str, int], dtype: str) -> None:
        import zlib

        self.generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
        self.sizes = dict(sizes)
        self.dtype = dtype

    def normal(self, *shape: int | str, dtype: str = "", scale: float = 1.0) -> Tensor:
        """Normal numbers; a shape may name axis letters."""
        numbers = torch.randn(self.shape(shape), generator=self.generator, dtype=torch.float64) * scale
        return numbers.to(TORCH_DTYPES[dtype or self.dtype])

    def uniform(self, *shape: int | str, dtype: str = "f32", low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers in ``[low, high)``."""
        numbers = torch.rand(self.shape(shape), generator=self.generator, dtype=torch.float64) * (high - low) + low
        return numbers.to(TORCH_DTYPES[dtype])

    def integers(self, low: int, high: int, *shape: int | str, dtype: str = "i32") -> Tensor:
        """Integers in ``[low, high)``."""
        return torch.randint(low, high, self.shape(shape), generator=self.generator).to(TORCH_DTYPES[dtype])

    def distinct(self, high: int, count: int) -> Tensor:
        """``count`` distinct int32 numbers below ``high``, in random order."""
        return torch.randperm(high, generator=self.generator)[:count].to(torch.int32)

    def shape(self, dims: Sequence[int | str]) -> tuple[int, ...]:
        """Sizes of axis letters and numbers."""
        return tuple(self.sizes[d] if isinstance(d, str) else d for d in dims)


Make = Callable[[Draw], dict[str, Any]]


class Case:
    """One valid call: sizes and attributes, with inputs drawn from the contract unless ``make`` gives them.

    Args:
        id: Unique within the op; part of the test's name.
        make: Returns tensors that default drawing cannot make (indices, caches, packed weights).
        dtype: Element type of the activations (``bf16``, ``f32`` or ``f64``).
        required: A backend that implements the op may not exclude this case by a limit.
        bench: Also timed by ``benchmarks/ops.py``.
        **settings: Upper-case names are axis sizes, other names are attributes.
    """

    def __init__(
        self,
        id: str,
        *,
        make: Make | None = None,
        dtype: str = "bf16",
        required: bool = False,
        bench: bool = False,
        **settings: Any,
    ) -> None:
        self.id = id
        self.make = make
        self.dtype = dtype
        self.required = required
        self.bench = bench
        self.sizes: dict[str, int] = {k: v for k, v in settings.items() if k.isupper()}
        self.attributes: dict[str, Any] = {k: v for k, v in settings.items() if not k.isupper()}

    def inputs(self, op: Op[..., Any]) -> dict[str, Any]:
        """Fresh tensor arguments by name, the same on each call."""
        draw = Draw(f"{op.name}/{self.id}", self.sizes, self.dtype)
        made = self.make(draw) if self.make else {}
        for parameter in op.tensors:
            if parameter.name not in made and not parameter.optional:
                made[parameter.name] = _default(op, parameter, draw)
        return {p.name: made[p.name] for p in op.tensors if p.name in made}


class ErrorCase(Case):
    """One invalid call: the contract check must refuse it.

    Args:
        id: As in :class:`Case`.
        stretch: ``(parameter, axis letter)``: that axis of that tensor is made one longer.
        spoil: Changes the inputs in place instead (for wrong element types or missing tensors).
        raises: The exception type.
        match: Text that its message must contain.
        **settings: As in :class:`Case`.
    """

    def __init__(
        self,
        id: str,
        *,
        raises: type[ContractError],
        match: str,
        stretch: tuple[str, str] | None = None,
        spoil: Callable[[dict[str, Any]], None] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(id, **settings)
        self.raises = raises
        self.match = match
        self.stretch = stretch
        self.spoil = spoil

    def inputs(self, op: Op[..., Any]) -> dict[str, Any]:
        """Arguments with the fault in them."""
        made = super().inputs(op)
        if self.stretch:
            name, letter = self.stretch
            shape = next(p.shape for p in op.tensors if p.name == name)
            if shape is None:
                raise InternalError(f"{op.name}/{self.id}: {name} has no declared shape to stretch")
            axis = shape.dims.index(letter)
            made[name] = torch.cat([made[name], made[name].narrow(axis, 0, 1)], axis)
        if self.spoil:
            self.spoil(made)
        return made


def _default(op: Op[..., Any], parameter: TensorParameter, draw: Draw) -> Tensor:
    """Normal numbers in the declared shape; anything but a float tensor needs ``make``."""
    dtype = draw.dtype if draw.dtype in parameter.dtypes else next(iter(parameter.dtypes), "")
    if parameter.shape is None or not dtype.startswith(("bf", "f")):
        raise InternalError(
            f"{op.name}: a case must make {parameter.name!r} itself ({parameter.dtypes or parameter.formats})"
        )
    return draw.normal(*parameter.shape.dims, dtype=dtype)
