"""Stored tensors against the tensors that an architecture needs: missing, misshapen, mistyped, unknown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepinfer_core.errors import nearest
from deepinfer_core.weights.header import StoredTensor
from deepinfer_core.weights.index import CheckpointIndex
from deepinfer_core.weights.names import ExpectedTensor, is_ignored, scale_name

_MAX_HINTS = 20
"""Missing tensors for which a similar name is searched: the search is slow, and a wrong format misses thousands."""

_FOLDED_NORM = re.compile(r"(^|\.)hc_(attn|ffn|head)_norm\.weight$")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs: ``problems`` forbid loading, ``notes`` do not."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def compare_tensors(
    expected: Mapping[str, ExpectedTensor], index: CheckpointIndex, *, strict: bool = False
) -> Comparison:
    """Compare what is stored with what is needed, by name, from headers alone.

    Args:
        expected: Tensors that the architecture needs, by name.
        index: Tensors that are stored.
        strict: Count unknown tensors as a problem, not as a note.
    """
    surplus = sorted(name for name in {*index.tensors, *index.unindexed} if name not in expected)
    unknown = list(_listed("unknown tensors, not loaded", [name for name in surplus if not _is_known(name)]))
    problems = [
        *_missing_problems(expected, surplus, index),
        *_differences(expected, index),
        *(
            f"{name} must not exist: its weight is folded into the mixing function"
            for name in surplus
            if _is_folded(name)
        ),
        *(unknown if strict else ()),
    ]
    return Comparison(tuple(problems), (*_notes(expected, surplus, index), *(() if strict else unknown)))


def _is_folded(name: str) -> bool:
    """A hyper-connection norm, which this format does not store (spec model/02 section 1)."""
    return _FOLDED_NORM.search(name) is not None


def _is_known(name: str) -> bool:
    return is_ignored(name) or _is_folded(name)


def _listed(what: str, names: Sequence[str]) -> Iterator[str]:
    """One line for any number of names, none for no name."""
    if names:
        yield f"{what} ({len(names)}): {', '.join(names)}"


def _is_missing(name: str, index: CheckpointIndex) -> bool:
    """Not stored, as far as one can know: a tensor of an absent or unreadable shard is not called missing."""
    return name not in index.tensors and index.shards.get(name) not in index.unread_shards


def _missing_problems(
    expected: Mapping[str, ExpectedTensor], surplus: Sequence[str], index: CheckpointIndex
) -> Iterator[str]:
    """Needed tensors that are not stored, with the shard searched and a similar name, and indexed ones likewise."""
    by_layer: dict[str, list[str]] = defaultdict(list)
    for name in surplus:
        by_layer[_layer(name)].append(name)
    missing = [tensor for name, tensor in expected.items() if _is_missing(name, index)]
    for number, tensor in enumerate(missing):
        hint = nearest(tensor.name, by_layer[_layer(tensor.name)]) if number < _MAX_HINTS else ""
        remedy = "" if tensor.is_used else "; a config for text only has vision_config.num_hidden_layers 0"
        yield f"{_describe(tensor, index)} is missing: {_where_searched(tensor.name, index)}{hint}{remedy}"
    for name, shard in index.unstored.items():
        if name not in expected:
            yield f"{name} is indexed in {shard}, whose header has no such tensor"


def _layer(name: str) -> str:
    """The first two parts of a name, such as ``layers.3``; similar names are looked for within it."""
    return ".".join(name.split(".")[:2]) if name.startswith(("layers.", "mtp.")) else ""


def _describe(tensor: ExpectedTensor, index: CheckpointIndex) -> str:
    """The name, and for a scale the weight that cannot be read without it."""
    if tensor.scale_of is None:
        return tensor.name
    shard = index.shards.get(tensor.scale_of)
    return f"{tensor.name}, the scale of {tensor.scale_of}{f' (in {shard})' if shard else ''},"


def _where_searched(name: str, index: CheckpointIndex) -> str:
    if name in index.unstored:
        return f"the index gives shard {index.unstored[name]}, whose header has no such tensor"
    if name in index.unindexed:
        return f"shard {index.unindexed[name]} holds it, but the index does not list it"
    shards = sorted(set(index.shards.values()))
    return f"searched {shards[0] if len(shards) == 1 else f'the index and the headers of {len(shards)} shards'}"


def _differences(expected: Mapping[str, ExpectedTensor], index: CheckpointIndex) -> Iterator[str]:
    """Stored tensors of a wrong type or shape."""
    for name, tensor in expected.items():
        stored = index.tensors.get(name)
        if stored is None:
            continue
        where = f"{name} in {stored.shard.name}"
        if stored.dtype not in tensor.dtypes:
            yield f"{where} is {stored.dtype}; it must be {' or '.join(tensor.dtypes)}{_dtype_reason(tensor)}"
        if stored.shape != tensor.shape:
            needed = f"{list(tensor.shape)}{_shape_reason(tensor)}"
            yield f"{where} has shape {list(stored.shape)}; the config needs {needed}"


def _dtype_reason(tensor: ExpectedTensor) -> str:
    if tensor.scale_of is None:
        return ""
    return f": scales are powers of two, and others cannot be rounded alone; quantise {tensor.scale_of} again"


def _shape_reason(tensor: ExpectedTensor) -> str:
    if ".engram.embed." in tensor.name:
        return " (the sum of the layer's primes gives the rows)"
    if tensor.scale_of is not None:
        return f" (one scale for every group of {tensor.scale_of})"
    return ""


def _notes(expected: Mapping[str, ExpectedTensor], surplus: Sequence[str], index: CheckpointIndex) -> Iterator[str]:
    """Harmless oddities, each kind in one line."""
    vision = [name for name, tensor in expected.items() if not tensor.is_used and name in index.tensors]
    if vision:
        yield f"{len(vision)} tensors of the vision part are known and not loaded"
    yield from _listed("known tensors that are not needed", [name for name in surplus if is_ignored(name)])
    rounded = [name for name, tensor in expected.items() if _is_rounded(tensor, index.tensors.get(name))]
    yield from _listed("F32 tensors, rounded to BF16 when loaded", rounded)
    for name, stored in index.tensors.items():
        scale = index.tensors.get(scale_name(name)) if name.endswith(".engram.embed.weight") else None
        if scale is not None and scale.shard != stored.shard:
            yield f"{name} and its scale are in different shards; other engines want them in one"


def _is_rounded(tensor: ExpectedTensor, stored: StoredTensor | None) -> bool:
    return stored is not None and tensor.is_used and tensor.dtypes[0] == "BF16" and stored.dtype == "F32"
