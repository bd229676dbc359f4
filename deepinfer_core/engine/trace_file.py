"""Traces on disk: one safetensors file with named tensors and what made them.

A file of golden outputs holds the same names several times, once for each arithmetic, as ``f32/logits``; such a
variant is named behind the file: ``recall.safetensors::f32``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import ConfigError, RequestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

VARIANT_MARK = "::"
"""Separates a file from the variant that is meant."""

INPUT_PREFIX = "input/"
"""Of tensors that belong to the prompt: they have no variant."""

_OUT = "--out"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A trace that was read.

    Attributes:
        source: What the user called it.
        tensors: By name, without the variant.
        numerics: Arithmetic that made it, from the metadata or the variant; "" when neither says.
        metadata: What the file says about itself.
    """

    source: str
    tensors: Mapping[str, Tensor]
    numerics: str
    metadata: Mapping[str, str]


def require_writable(file: Path) -> None:
    """Find out before a run whether its result can be written.

    Raises:
        ConfigError: The folder is missing or cannot be written to, or a folder has the name of the file.
    """
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file in it, e.g. {file / 'trace.safetensors'}", source=_OUT)
    if not file.parent.is_dir():
        raise ConfigError(f"cannot write {file}: there is no folder {file.parent}; make it first", source=_OUT)
    try:
        if file.exists():
            file.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}", source=_OUT) from error


def write_trace(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a trace.

    Raises:
        ConfigError: The file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    apart = {name: tensor.clone() for name, tensor in tensors.items()}  # the format refuses names that share memory
    try:
        save_file(apart, file, metadata=dict(metadata))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write {file}: {error}", source=_OUT) from error


def read_trace(source: str) -> TraceFile:
    """Read a trace, or one variant of a golden file.

    Args:
        source: ``FILE`` or ``FILE::VARIANT``.

    Raises:
        RequestError: There is no such file or variant, the file is no safetensors file, or it has variants and
            none is named.
    """
    name, _, variant = source.partition(VARIANT_MARK)
    file = Path(name).expanduser()
    if not file.is_file():
        raise RequestError(f"diff: there is no file {file}")
    stored, metadata = _read(file)
    variants = sorted({key.partition("/")[0] for key in stored if "/" in key and not key.startswith(INPUT_PREFIX)})
    if variant not in (variants or [""]):
        raise RequestError(_wrong_variant(file, variant, variants))
    prefix = f"{variant}/" if variant else ""
    tensors = {key.removeprefix(prefix): stored[key] for key in stored if key.startswith((prefix, INPUT_PREFIX))}
    numerics = variant or metadata.get("numerics", "")
    return TraceFile(source=source, tensors=tensors, numerics=numerics, metadata=metadata)


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    # The class is made in a language that has no type stubs.
    opener: Any = safe_open
    try:
        with opener(file, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in sorted(opened.keys())}, dict(opened.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise RequestError(f"diff: {file} is not a safetensors file that can be read: {error}") from error


def _wrong_variant(file: Path, variant: str, variants: list[str]) -> str:
    if not variants:
        return f"diff: {file} holds one trace and no variant {variant!r}; give the file name alone"
    choices = ", ".join(f"{file.name}{VARIANT_MARK}{name}" for name in variants)
    if not variant:
        return f"diff: {file} holds {len(variants)} variants; say which: {choices}"
    return f"diff: {file} has no variant {variant!r}; choose {choices}{nearest(variant, variants)}"
