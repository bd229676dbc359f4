"""A small checkpoint that a test may spoil."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it stands in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def with_rows(self, rows: int) -> RawTensor:
        """The first rows only."""
        size = len(self.data) // self.shape[0]
        return replace(self, shape=(rows, *self.shape[1:]), data=self.data[: rows * size])


class EditableCheckpoint:
    """A copy of a checkpoint, with its files in a form that is easy to change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def shards(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.safetensors"))

    @contextmanager
    def config(self) -> Iterator[dict[str, Any]]:
        with self._json("config.json") as config:
            yield config

    @contextmanager
    def weight_map(self) -> Iterator[dict[str, str]]:
        with self._json(INDEX) as index:
            yield index["weight_map"]

    @contextmanager
    def _json(self, name: str) -> Iterator[Any]:
        path = self.folder / name
        content = json.loads(path.read_text())
        yield content
        path.write_text(json.dumps(content))

    def shard_of(self, name: str) -> str:
        return json.loads((self.folder / INDEX).read_text())["weight_map"][name]

    @contextmanager
    def tensors(self, shard: str) -> Iterator[dict[str, RawTensor]]:
        """The tensors of one shard, written back when the block ends (without metadata)."""
        content = read_tensors(self.folder / shard)
        yield content
        write_tensors(self.folder / shard, content)

    def remove(self, name: str) -> None:
        """Take a tensor out of the index and out of its shard."""
        with self.tensors(self.shard_of(name)) as tensors:
            del tensors[name]
        with self.weight_map() as weight_map:
            del weight_map[name]

    def change(self, name: str, edit: Callable[[RawTensor], RawTensor]) -> None:
        with self.tensors(self.shard_of(name)) as tensors:
            tensors[name] = edit(tensors[name])

    def add(self, name: str, tensor: RawTensor) -> None:
        with self.tensors(self.shards[0]) as tensors:
            tensors[name] = tensor
        with self.weight_map() as weight_map:
            weight_map[name] = self.shards[0]

    def prefix(self, *, index: bool, headers: bool) -> None:
        """Put ``model.`` before every name."""
        if headers:
            for shard in self.shards:
                write_tensors(
                    self.folder / shard, {f"model.{n}": t for n, t in read_tensors(self.folder / shard).items()}
                )
        if index:
            with self.weight_map() as weight_map:
                prefixed = {f"model.{name}": shard for name, shard in weight_map.items()}
                weight_map.clear()
                weight_map.update(prefixed)

    def merge(self) -> None:
        """Put everything into the one file of a checkpoint without an index."""
        merged = {name: tensor for s in self.shards for name, tensor in read_tensors(self.folder / s).items()}
        for name in (*self.shards, INDEX):
            (self.folder / name).unlink()
        write_tensors(self.folder / "model.safetensors", merged)


def read_tensors(path: Path) -> dict[str, RawTensor]:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {
        name: RawTensor(
            e["dtype"], tuple(e["shape"]), content[start + e["data_offsets"][0] : start + e["data_offsets"][1]]
        )
        for name, e in header.items()
    }


def write_tensors(path: Path, tensors: dict[str, RawTensor]) -> None:
    header: dict[str, Any] = {}
    position = 0
    for name, tensor in tensors.items():
        end = position + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensor.data for tensor in tensors.values()))


@pytest.fixture
def mini() -> Path:
    """The random checkpoint of the golden files, not to be changed."""
    return REPOSITORY / "tests" / "golden" / "mini_b" / "checkpoint"


@pytest.fixture
def tiny() -> Path:
    """The trained checkpoint that ships with the project, not to be changed."""
    return REPOSITORY / "deepinfer_core" / "models" / "tiny"


@pytest.fixture
def checkpoint(mini: Path, tmp_path: Path) -> EditableCheckpoint:
    folder = tmp_path / "checkpoint"
    shutil.copytree(mini, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    return EditableCheckpoint(folder)


@pytest.fixture
def floats() -> Callable[..., RawTensor]:
    """Makes an F32 tensor of one repeated value."""
    import struct

    def make(shape: tuple[int, ...], value: float) -> RawTensor:
        return RawTensor("F32", shape, struct.pack("<f", value) * prod(shape))

    return make


@pytest.fixture
def released() -> dict[str, Any]:
    """The config of the released model."""
    return json.loads((REPOSITORY / "tests" / "unit" / "config" / "released_config.json").read_text())
