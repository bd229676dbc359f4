"""Rules between the values of a model's config: sharing topology and sizes (spec attention/00, model/01, model/11).

Only what the format or the arithmetic needs is checked; limits of particular kernels are the backends' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.config.architecture import BLOCK_TOKENS

_GROUP = 32
"""Channels that share one scale in every quantised format of weights, activations and window keys."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A rule between several keys of ``text_config`` or ``vision_config``.

    Attributes:
        keys: Dotted names; the rule is tried only when all of them have a valid value.
        problems: Takes those values in order and yields what is wrong.
    """

    keys: tuple[str, ...]
    problems: Callable[..., Iterator[str]]


def broken_relations(values: Mapping[str, Any]) -> list[str]:
    """Every broken rule among ``values``, which are keyed by dotted config name."""
    found: list[str] = []
    for relation in RELATIONS:
        if all(key in values for key in relation.keys):
            found.extend(relation.problems(*(values[key] for key in relation.keys)))
    return found


def _group_of_32(key: str, what: str) -> Relation:
    """``what``, the value of ``key`` itself, is cut into whole groups of 32."""

    def problems(size: int) -> Iterator[str]:
        if size % _GROUP:
            yield f"{key} is {size}; {what} must be a multiple of {_GROUP}, the quantisation group"

    return Relation((key,), problems)


def _below_vocabulary(key: str) -> Relation:
    def problems(token_id: int, vocab_size: int) -> Iterator[str]:
        if token_id >= vocab_size:
            yield f"{key} is {token_id}; it must be below text_config.vocab_size {vocab_size}"

    return Relation((key, "text_config.vocab_size"), problems)


def _at_most(key: str, limit: str) -> Relation:
    def problems(value: int, most: int) -> Iterator[str]:
        if value > most:
            yield f"{key} is {value}; it must be at most {limit} {most}"

    return Relation((key, limit), problems)


def _output_groups(heads: int, groups: int, head_dim: int) -> Iterator[str]:
    if heads % groups:
        yield f"text_config.num_attention_heads is {heads}; it must be divisible by text_config.o_groups {groups}"
    elif heads // groups * head_dim % _GROUP:
        yield f"heads of one output group are {heads // groups * head_dim} wide; that must be a multiple of {_GROUP}"


def _rotary(rotary: int, head_dim: int, index_head_dim: int) -> Iterator[str]:
    if rotary % 2 or rotary >= head_dim or rotary > index_head_dim:
        yield (
            f"text_config.qk_rope_head_dim is {rotary}; it must be even, below head_dim {head_dim} "
            f"and at most index_head_dim {index_head_dim}"
        )


def _ratio_count(ratios: Sequence[int], layers: int, draft_layers: int) -> Iterator[str]:
    if len(ratios) != layers + draft_layers:
        yield (
            f"text_config.compress_ratios has {len(ratios)} entries; it must have num_hidden_layers {layers} "
            f"+ num_nextn_predict_layers {draft_layers} = {layers + draft_layers}"
        )
        return
    if any(ratios[layers:]):
        yield f"text_config.compress_ratios ends in {list(ratios[layers:])}; draft layers must have ratio 0"
    if 1 not in ratios[:layers]:
        yield "text_config.compress_ratios has no layer of ratio 1; at least one is needed"


def _source_layers(key: str) -> Relation:
    """Every layer of the list ``key`` exists and has compressed entries."""

    def problems(sources: Sequence[int], ratios: Sequence[int], layers: int) -> Iterator[str]:
        for layer in sources:
            if layer >= layers:
                yield f"{key} names layer {layer}; the model has layers 0 to {layers - 1}"
            elif layer < len(ratios) and ratios[layer] == 0:
                yield f"{key} names layer {layer}, whose ratio is 0; sources need ratio 1 or 2"

    return Relation((key, "text_config.compress_ratios", "text_config.num_hidden_layers"), problems)


def _nesting(kv: Sequence[int], index_key: Sequence[int], index: Sequence[int]) -> Iterator[str]:
    """The three source lists nest, so that a finer segment never crosses a coarser one."""
    if missing := sorted(set(kv) - set(index_key)):
        yield f"KV source layers {missing} are not in text_config.index_k_source_layer_ids; every KV source must be"
    if missing := sorted(set(index_key) - set(index)):
        yield f"index-key source layers {missing} are not in text_config.index_source_layer_ids; every one must be"


def _segments(kv: Sequence[int], ratios: Sequence[int], layers: int) -> Iterator[str]:
    """Layers that share a KV source have one ratio; layers without a source have ratio 0."""
    backbone = ratios[:layers]
    first = min(kv, default=layers)
    for layer, ratio in enumerate(backbone[:first]):
        if ratio:
            yield f"layer {layer} has ratio {ratio} but no KV source at or before it in text_config.kv_source_layer_ids"
    for start, end in zip(kv, (*kv[1:], layers), strict=True):
        if len(found := sorted(set(backbone[start:end]))) > 1:
            yield f"layers {start} to {end - 1} share the KV source {start} but have ratios {found}; one is needed"


def _cut(kv: Sequence[int], ratios: Sequence[int], layers: int) -> Iterator[str]:
    """The first ratio-1 layer is the last KV source: later layers keep no entries of their own."""
    if 1 not in ratios[:layers]:
        return
    first = ratios.index(1)
    if first not in kv:
        yield f"layer {first} is the first of ratio 1; it must be in text_config.kv_source_layer_ids"
    elif kv[-1] != first:
        yield (
            f"text_config.kv_source_layer_ids ends in {kv[-1]}; the last KV source must be layer {first}, the first of "
            "ratio 1, because the layers after it are run on a suffix of the prompt only"
        )


def _candidates(source: int, index: Sequence[int], ratios: Sequence[int], block_size: int) -> Iterator[str]:
    """The candidate source selects, and its consumers number their entries as it does."""
    if source not in index:
        yield f"text_config.candidate_source_layer_id is {source}; it must be in index_source_layer_ids"
        return
    if max(index) >= len(ratios) or not ratios[source]:
        return
    for consumer in (layer for layer in index if layer > source and ratios[layer] != ratios[source]):
        yield f"layer {consumer} selects among candidates of layer {source} but has another ratio"
    if (BLOCK_TOKENS // ratios[source]) % block_size:
        yield (
            f"text_config.candidate_block_size is {block_size}; it must divide {BLOCK_TOKENS // ratios[source]}, "
            f"the entries of one cache block at ratio {ratios[source]}"
        )


def _candidate_capacity(blocks: int, block_size: int, top_k: int) -> Iterator[str]:
    if blocks * block_size < top_k:
        yield (
            f"text_config.candidate_topk_blocks {blocks} x candidate_block_size {block_size} = {blocks * block_size} "
            f"entries cannot fill index_topk {top_k}"
        )


def _engram_layers(layer_ids: Sequence[int], ratios: Sequence[int]) -> Iterator[str]:
    """Engram layers are encoder layers: those run on every prompt token."""
    cut = ratios.index(1) if 1 in ratios else len(ratios)
    for layer in (layer for layer in layer_ids if layer >= cut):
        yield f"text_config.engram_layer_ids names layer {layer}; it must be before layer {cut}, the first of ratio 1"


def _engram_streams(layer_ids: Sequence[int], streams: int) -> Iterator[str]:
    if layer_ids and streams < 2:
        yield f"text_config.hc_mult is {streams}; a model with engram layers needs 2 or more"


def _draft_targets(targets: Sequence[int], ratios: Sequence[int], layers: int) -> Iterator[str]:
    """All target layers run on the same tokens."""
    if not targets:
        yield "text_config.dspark_target_layer_ids is empty; the draft module needs at least one"
    if beyond := [layer for layer in targets if layer >= layers]:
        yield f"text_config.dspark_target_layer_ids names {beyond}; the model has layers 0 to {layers - 1}"
    elif 1 in ratios and len({layer >= ratios.index(1) for layer in targets}) > 1:
        yield (
            f"text_config.dspark_target_layer_ids {list(targets)} lie on both sides of layer {ratios.index(1)}, "
            "the first of ratio 1; all must be before it or none"
        )


def _vision_heads(hidden: int, heads: int) -> Iterator[str]:
    if hidden % (4 * heads):
        yield f"vision_config.hidden_size {hidden} / num_attention_heads {heads} must be a multiple of 4"


def _vision_pixels(min_pixels: int, patch: int, downsample: int) -> Iterator[str]:
    if min_pixels < (cell := (patch * downsample) ** 2):
        yield f"vision_config.min_pixels is {min_pixels}; it must be (patch_size x downsample_ratio)^2 = {cell} or more"


_LAYERS = "text_config.num_hidden_layers"
_RATIOS = "text_config.compress_ratios"
_KV = "text_config.kv_source_layer_ids"
_INDEX_KEY = "text_config.index_k_source_layer_ids"
_INDEX = "text_config.index_source_layer_ids"
_BLOCK_SIZE = "text_config.candidate_block_size"

RELATIONS: tuple[Relation, ...] = (
    _below_vocabulary("bos_token_id"),
    _below_vocabulary("eos_token_id"),
    _below_vocabulary("pad_token_id"),
    _below_vocabulary("text_config.engram_pad_token_id"),
    _below_vocabulary("text_config.dspark_noise_token_id"),
    _group_of_32("text_config.hidden_size", "the model's width"),
    _group_of_32("text_config.moe_intermediate_size", "the experts' inner width"),
    _group_of_32("text_config.head_dim", "the head width"),
    _group_of_32("text_config.index_head_dim", "the index head width"),
    _group_of_32("text_config.q_lora_rank", "the query rank"),
    _group_of_32("text_config.o_lora_rank", "the output rank of a group"),
    _group_of_32("text_config.engram_head_dim", "the width of a table row"),
    _at_most("text_config.num_experts_per_tok", "text_config.n_routed_experts"),
    _at_most("text_config.dspark_num_experts_per_tok", "text_config.dspark_n_routed_experts"),
    Relation(("text_config.num_attention_heads", "text_config.o_groups", "text_config.head_dim"), _output_groups),
    Relation(("text_config.qk_rope_head_dim", "text_config.head_dim", "text_config.index_head_dim"), _rotary),
    Relation((_RATIOS, _LAYERS, "text_config.num_nextn_predict_layers"), _ratio_count),
    _source_layers(_KV),
    _source_layers(_INDEX_KEY),
    _source_layers(_INDEX),
    Relation((_KV, _INDEX_KEY, _INDEX), _nesting),
    Relation((_KV, _RATIOS, _LAYERS), _segments),
    Relation((_KV, _RATIOS, _LAYERS), _cut),
    Relation(("text_config.candidate_source_layer_id", _INDEX, _RATIOS, _BLOCK_SIZE), _candidates),
    Relation(("text_config.candidate_topk_blocks", _BLOCK_SIZE, "text_config.index_topk"), _candidate_capacity),
    Relation(("text_config.engram_layer_ids", _RATIOS), _engram_layers),
    Relation(("text_config.engram_layer_ids", "text_config.hc_mult"), _engram_streams),
    Relation(("text_config.dspark_target_layer_ids", _RATIOS, _LAYERS), _draft_targets),
    Relation(("vision_config.hidden_size", "vision_config.num_attention_heads"), _vision_heads),
    Relation(
        ("vision_config.min_pixels", "vision_config.patch_size", "vision_config.downsample_ratio"), _vision_pixels
    ),
)
