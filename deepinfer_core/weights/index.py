"""Which shard holds which tensor: the index file, or one single file; headers only.

Tensor names are given here without the optional leading ``model.``, which may stand in the index, in the
headers, in both or in neither (spec model/02 section 1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from deepinfer_core.weights.header import Header, StoredTensor, read_header

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_PREFIX = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """The tensors of a checkpoint by name, from headers alone.

    Attributes:
        folder: The checkpoint.
        tensors: Every tensor that is indexed and really stored.
        shards: For every indexed name the file that should hold it, stored or not.
        unindexed: Stored tensors that the index does not name, with their file.
        unstored: Indexed tensors that are not in the header of their (readable) file, with that file.
        unread_shards: Files that the index names and that are absent or unreadable, so that nobody knows their tensors.
        problems: Everything that is wrong with index and files, ``unstored`` tensors aside.
    """

    folder: Path
    tensors: Mapping[str, StoredTensor]
    shards: Mapping[str, str]
    unindexed: Mapping[str, str]
    unstored: Mapping[str, str]
    unread_shards: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def read_index(folder: Path) -> CheckpointIndex:
    """Find every tensor of a checkpoint; problems are collected, not raised."""
    if (folder / INDEX_FILE).is_file():
        weight_map, problems = _read_weight_map(folder / INDEX_FILE)
        return _from_weight_map(folder, weight_map, problems)
    if (folder / SINGLE_FILE).is_file():
        return _from_single_file(folder)
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    found = f"; it holds {', '.join(others)}, but no index that says what is in them" if others else ""
    return _nothing(folder, f"the folder has neither {INDEX_FILE} nor {SINGLE_FILE}{found}")


def canonical(name: str) -> str:
    """A tensor name without the optional prefix."""
    return name.removeprefix(_PREFIX)


def _nothing(folder: Path, problem: str) -> CheckpointIndex:
    return CheckpointIndex(
        folder=folder, tensors={}, shards={}, unindexed={}, unstored={}, unread_shards=(), problems=(problem,)
    )


def _read_weight_map(path: Path) -> tuple[dict[str, str], list[str]]:
    """The entries of an index file that have the right form, and what is wrong with the others."""
    try:
        index: object = json.loads(path.read_bytes())
    except ValueError as error:
        return {}, [f"{path.name} is not JSON ({error})"]
    weight_map = cast(Mapping[str, Any], index).get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        return {}, [f"{path.name} has no object 'weight_map'"]
    entries = cast(Mapping[str, Any], weight_map)
    good = {name: shard for name, shard in entries.items() if isinstance(shard, str) and Path(shard).name == shard}
    wrong = [name for name in entries if name not in good]
    return good, [
        f"{path.name} gives {name} the file {entries[name]!r}; it must be a plain file name" for name in wrong
    ]


def _from_weight_map(folder: Path, weight_map: Mapping[str, str], problems: list[str]) -> CheckpointIndex:
    names = sorted(set(weight_map.values()))
    absent = tuple(name for name in names if not (folder / name).is_file())
    if absent:
        problems.append(f"{len(absent)} of {len(names)} shards are absent: {', '.join(absent)}; download them")
    headers = {name: read_header(folder / name) for name in names if name not in absent}
    stored: dict[str, dict[str, StoredTensor]] = {}
    for name, header in headers.items():
        problems += header.problems
        stored[name], repeated = _by_canonical_name(header)
        problems += [
            f"shard {name} holds {a} and {b}, which differ only by the prefix {_PREFIX!r}" for a, b in repeated
        ]
    unread = (*absent, *(name for name, header in headers.items() if header.is_unreadable))
    shards, repeated = _unique(list(weight_map))
    problems += [f"{INDEX_FILE} lists {a} and {b}, which differ only by the prefix {_PREFIX!r}" for a, b in repeated]
    shards = {name: weight_map[indexed] for name, indexed in shards.items()}
    return CheckpointIndex(
        folder=folder,
        tensors={name: stored[shard][name] for name, shard in shards.items() if name in stored.get(shard, {})},
        shards=shards,
        unindexed={name: shard for shard, found in stored.items() for name in found if name not in shards},
        unstored={name: shard for name, shard in shards.items() if shard not in unread and name not in stored[shard]},
        unread_shards=unread,
        problems=tuple(problems),
    )


def _from_single_file(folder: Path) -> CheckpointIndex:
    header = read_header(folder / SINGLE_FILE)
    tensors, repeated = _by_canonical_name(header)
    problems = [f"{SINGLE_FILE} holds {a} and {b}, which differ only by the prefix {_PREFIX!r}" for a, b in repeated]
    return CheckpointIndex(
        folder=folder,
        tensors=tensors,
        shards=dict.fromkeys(tensors, SINGLE_FILE),
        unindexed={},
        unstored={},
        unread_shards=(SINGLE_FILE,) if header.is_unreadable else (),
        problems=(*header.problems, *problems),
    )


def _by_canonical_name(header: Header) -> tuple[dict[str, StoredTensor], list[tuple[str, str]]]:
    by_stored_name = {tensor.stored_name: tensor for tensor in header.tensors}
    names, repeated = _unique(list(by_stored_name))
    return {name: by_stored_name[stored] for name, stored in names.items()}, repeated


def _unique(names: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Names by canonical form, and the pairs that share one."""
    unique: dict[str, str] = {}
    repeated: list[tuple[str, str]] = []
    for name in names:
        first = unique.setdefault(canonical(name), name)
        if first != name:
            repeated.append((first, name))
    return unique, repeated
