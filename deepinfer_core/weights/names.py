"""Every tensor that an architecture needs, by published name: shape, element types, and which scale goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from deepinfer_core.config.architecture import DraftArchitecture, ModelArchitecture
from deepinfer_core.config.engram_geometry import engram_rows
from deepinfer_core.weights.tables import (
    COMPRESSOR,
    COMPRESSOR_GATE,
    ENGRAM,
    EXPERT,
    FIRST_DRAFT,
    GLOBAL,
    HEAD_MIX,
    IMAGE_ROUTING,
    IMAGE_TOKENS,
    INDEX_KEY,
    INDEXER,
    LAST_DRAFT,
    LAYER,
    VISION,
    VISION_BLOCK,
    Entry,
)

SCALE_GROUP = 32
"""Channels (and, in FP8 matrices, rows) that share a scale."""


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """One tensor that a checkpoint must have.

    Attributes:
        name: Published name, without the optional prefix.
        shape: Stored sizes; two FP4 values are one byte.
        dtypes: Element types that are accepted, the format's own first.
        part: Part of the model it belongs to, for sums of bytes.
        scale_of: For a scale, the weight whose scale it is.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    part: str
    scale_of: str | None = None

    @property
    def is_used(self) -> bool:
        """False for tensors that only image input needs."""
        return self.part != "vision"


_DTYPES = {
    "bf16": ("BF16",),
    "f32": ("F32",),
    "bf16_or_f32": ("BF16", "F32"),
    "fp8": ("F8_E4M3",),
    "fp4": ("I8",),
    "table": ("F8_E4M3",),
    "scale": ("F8_E8M0",),
}


def expected_tensors(architecture: ModelArchitecture) -> Iterator[ExpectedTensor]:
    """Every tensor that a checkpoint of this architecture must have, vision included."""
    sizes = _sizes(architecture)
    shifted = architecture.hyper_connection.shifted
    yield from _expand([""], GLOBAL if shifted else (*GLOBAL, *HEAD_MIX), sizes)
    for layer in range(architecture.num_layers):
        yield from _backbone_layer(architecture, layer, sizes)
    if architecture.draft is not None:
        for layer in range(architecture.draft.num_layers):
            yield from _draft_layer(architecture, architecture.draft, layer, sizes)
    if architecture.vision is not None:
        yield from _expand([""], (*IMAGE_TOKENS, *VISION), sizes)
        blocks = [f"vision.blocks.{block}." for block in range(architecture.vision.num_layers)]
        yield from _expand(blocks, VISION_BLOCK, sizes)


def is_ignored(name: str) -> bool:
    """Whether a tensor that no parameter needs is known all the same: vision parts, and copies that drafts share."""
    first, _, rest = name.partition(".")
    if first == "mtp":
        return rest.partition(".")[2] in ("embed.weight", "head.weight", "ffn.gate.bias_vl")
    return first in ("vision", "aligner", "image_start", "image_end", "image_newline") or name.endswith(
        ".ffn.gate.bias_vl"
    )


def scale_name(weight: str) -> str:
    """Name of the scale that goes with a quantised weight."""
    return weight.removesuffix(".weight") + ".scale"


def _backbone_entries(architecture: ModelArchitecture, layer: int) -> tuple[Entry, ...]:
    """The table rows of one backbone layer, by what the layer owns; its experts are separate."""
    entries = list(LAYER)
    if architecture.vision is not None:
        entries += IMAGE_ROUTING
    if layer in architecture.kv_source_layers:
        entries += COMPRESSOR
        entries += COMPRESSOR_GATE if architecture.compress_ratios[layer] != 1 else ()
    if layer in architecture.index_source_layers:
        entries += INDEXER
    if layer in architecture.index_key_source_layers:
        entries += INDEX_KEY
    if architecture.engram is not None and layer in architecture.engram.layer_ids:
        entries += ENGRAM
    return tuple(entries)


def _backbone_layer(architecture: ModelArchitecture, layer: int, sizes: Mapping[str, int]) -> Iterator[ExpectedTensor]:
    engram = architecture.engram
    if engram is not None and layer in engram.layer_ids:
        sizes = {**sizes, "table_rows": engram_rows(engram)[engram.layer_ids.index(layer)]}
    yield from _expand([f"layers.{layer}."], _backbone_entries(architecture, layer), sizes)
    yield from _experts(f"layers.{layer}.", architecture.experts.num_experts, sizes)


def _draft_layer(
    architecture: ModelArchitecture, draft: DraftArchitecture, layer: int, sizes: Mapping[str, int]
) -> Iterator[ExpectedTensor]:
    sizes = {**sizes, "experts": draft.experts.num_experts}
    entries = list(LAYER)
    if architecture.vision is not None:
        entries += IMAGE_ROUTING
    if layer == 0:
        entries += FIRST_DRAFT
    if layer == draft.num_layers - 1:
        entries += LAST_DRAFT
        entries += () if architecture.hyper_connection.shifted else HEAD_MIX
    yield from _expand([f"mtp.{layer}."], entries, sizes)
    yield from _experts(f"mtp.{layer}.", draft.experts.num_experts, sizes)


def _experts(prefix: str, num_experts: int, sizes: Mapping[str, int]) -> Iterator[ExpectedTensor]:
    return _expand([f"{prefix}ffn.experts.{expert}." for expert in range(num_experts)], EXPERT, sizes)


def _expand(prefixes: Iterable[str], entries: Iterable[Entry], sizes: Mapping[str, int]) -> Iterator[ExpectedTensor]:
    """Tensors of table rows below each prefix: the weight, and its scale if it is quantised."""
    rows = [(entry, _shapes(entry, sizes)) for entry in entries]
    for prefix in prefixes:
        for entry, (shape, scale_shape) in rows:
            name = prefix + entry.suffix
            yield ExpectedTensor(name, shape, _DTYPES[entry.storage], entry.part)
            if scale_shape is not None:
                yield ExpectedTensor(scale_name(name), scale_shape, _DTYPES["scale"], entry.part, scale_of=name)


def _shapes(entry: Entry, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Stored shape of a weight and of its scale (spec model/02 section 2)."""
    shape = tuple(_evaluate(size, sizes) for size in entry.shape)
    match entry.storage:
        case "fp8":
            return shape, tuple(-(-size // SCALE_GROUP) for size in shape)
        case "fp4":
            return (shape[0], shape[1] // 2), (shape[0], shape[1] // SCALE_GROUP)
        case "table":
            return shape, (shape[0], shape[1] // SCALE_GROUP)
        case _:
            return shape, None


def _evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    """Value of a sum of products of names and numbers, such as ``"streams*hidden+hidden"``."""
    total = 0
    for term in expression.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor) if factor.isdecimal() else sizes[factor]
        total += product
    return total


def _sizes(architecture: ModelArchitecture) -> dict[str, int]:
    """The names that shapes are written in."""
    attention, indexer, experts = architecture.attention, architecture.indexer, architecture.experts
    sizes = {
        "vocab": architecture.vocab_size,
        "hidden": architecture.hidden_size,
        "streams": architecture.hyper_connection.num_streams,
        "mixes": architecture.num_mixes,
        "heads": attention.num_heads,
        "head_dim": attention.head_dim,
        "groups": attention.output_groups,
        "group_heads": attention.num_heads // attention.output_groups,
        "query_rank": attention.query_rank,
        "output_rank": attention.output_rank,
        "index_heads": indexer.num_heads,
        "index_dim": indexer.head_dim,
        "experts": experts.num_experts,
        "inner": experts.inner_size,
        "shared": experts.num_shared,
    }
    if (engram := architecture.engram) is not None:
        sizes |= {"row_width": engram.head_dim, "columns": engram.hash_columns}
    if (draft := architecture.draft) is not None:
        sizes |= {"targets": len(draft.target_layer_ids), "markov_rank": draft.markov_rank}
    if (vision := architecture.vision) is not None:
        sizes |= {
            "width": vision.hidden_size,
            "vision_inner": vision.intermediate_size,
            "patch": vision.patch_size,
            "cell": vision.downsample_ratio,
        }
    return sizes
