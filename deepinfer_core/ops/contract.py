"""Check one call against an op's contract: axes agree, element types and formats are listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_core.errors import ContractError, DtypeError, ShapeError
from deepinfer_core.ops.declare import Op, TensorParameter
from deepinfer_core.tensor import Cache, Packed, QuantTensor

_TORCH_NAMES = {
    "torch.bfloat16": "bf16", "torch.float16": "f16", "torch.float32": "f32", "torch.float64": "f64",
    "torch.float8_e4m3fn": "e4m3", "torch.float8_e8m0fnu": "e8m0", "torch.bool": "bool", "torch.uint8": "u8",
    "torch.int8": "i8", "torch.int16": "i16", "torch.int32": "i32", "torch.int64": "i64",
}  # fmt: skip


def dtype_name(value: Any) -> str:
    """Our name of a tensor's element type."""
    return _TORCH_NAMES.get(str(value.dtype), str(value.dtype))


def arguments(op: Op[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Tensor arguments of a call by parameter name; attributes are left out."""
    names = [p.name for p in op.tensors]
    if len(args) > len(names):
        raise ContractError(
            f"{op.name}: takes {len(names)} tensors {names}, got {len(args)}; pass attributes by keyword"
        )
    given = dict(zip(names, args, strict=False))
    given.update({name: kwargs[name] for name in names if name in kwargs})
    missing = [p.name for p in op.tensors if p.name not in given and not p.optional]
    if missing:
        raise ContractError(f"{op.name}: missing {', '.join(missing)}; pass every tensor of the contract")
    return given


def check(op: Op[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Raise unless a call keeps the contract; returns the size of every axis letter.

    Raises:
        ShapeError: A rank or size is wrong, or two tensors disagree about an axis.
        DtypeError: An element type or format is not in the contract.
        ContractError: A tensor or attribute is missing or unknown.
    """
    given = arguments(op, args, kwargs)
    known = {a.name for a in op.attributes} | {p.name for p in op.tensors}
    unknown = sorted(set(kwargs) - known)
    absent = [a.name for a in op.attributes if a.required and a.name not in kwargs]
    if unknown or absent:
        raise ContractError(
            f"{op.name}: unknown arguments {unknown}, missing attributes {absent}; known are {sorted(known)}"
        )
    sizes: dict[str, tuple[int, str]] = {}
    for parameter in op.tensors:
        value = given.get(parameter.name)
        if value is None:
            if not parameter.optional:
                raise ContractError(f"{op.name}: {parameter.name} is None; this tensor is not optional")
            continue
        _check_type(op.name, parameter, value)
        _check_shape(op.name, parameter, value, sizes)
    return {letter: size for letter, (size, _) in sizes.items()}


def _check_type(name: str, parameter: TensorParameter, value: Any) -> None:
    if isinstance(value, Packed):
        return
    if isinstance(value, QuantTensor | Cache):
        if value.format not in parameter.formats:
            allowed = parameter.formats or "no quantised format"
            raise DtypeError(f"{name}: {parameter.name} has format {value.format}; allowed: {allowed}")
        return
    found = dtype_name(value)
    if found not in parameter.dtypes:
        allowed = parameter.dtypes or parameter.formats
        raise DtypeError(f"{name}: {parameter.name} has dtype {found}; allowed: {allowed}; convert it first")


def _check_shape(name: str, parameter: TensorParameter, value: Any, sizes: dict[str, tuple[int, str]]) -> None:
    if parameter.shape is None:
        return
    shape, dims = tuple(value.shape), parameter.shape.dims
    if len(shape) != len(dims):
        raise ShapeError(
            f"{name}: {parameter.name} has shape {shape}, the contract is {dims}; it needs {len(dims)} axes"
        )
    for size, dim in zip(shape, dims, strict=True):
        if dim == "_":
            continue
        if isinstance(dim, int):
            if size != dim:
                raise ShapeError(f"{name}: {parameter.name} has shape {shape}, but one axis must be {dim} in {dims}")
            continue
        expected, first = sizes.setdefault(dim, (size, parameter.name))
        if expected != size:
            raise ShapeError(
                f"{name}: {parameter.name} has {dim}={size} but {first} has {dim}={expected}; make the two agree"
            )
