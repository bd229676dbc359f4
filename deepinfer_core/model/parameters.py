"""Frozen records of weights as they stand in the checkpoint, before a backend packs them.

A weight is a dense tensor (bf16 or f32) or a ``QuantTensor``: ``fp8_block32`` for FP8 linear maps,
``mxfp4`` for experts (stacked ``[E, out, in]``), ``mxfp8`` for engram tables. Shapes: spec model/02.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.tensor import QuantTensor

    Weight = Tensor | QuantTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MixParameters:
    """Hyper-connection mixes of one sub-layer: ``function [m(m+2), mH]``, ``base [m(m+2)]``, ``scale [3]``, f32."""

    function: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorParameters:
    """Producer of compressed entries: ``value [D, H]``, ``gate [D, H]`` (ratio 2 only), ``norm [D]``, bf16."""

    value: Tensor
    gate: Tensor | None
    norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerParameters:
    """Selection: ``query [Xd, rank]`` FP8, ``head_weights [X, H]``; ``key [d, D]``, ``key_norm [d]`` on key sources."""

    query: Weight
    head_weights: Tensor
    key: Tensor | None
    key_norm: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParameters:
    """One layer's attention: projections as in the checkpoint (``wq_a wq_b wkv wo_a wo_b``) and ``sink [N]`` f32."""

    query_a: Weight
    query_norm: Tensor
    query_b: Weight
    kv: Weight
    kv_norm: Tensor
    output_a: Weight
    output_b: Weight
    sink: Tensor
    compressor: CompressorParameters | None
    indexer: IndexerParameters | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParameters:
    """Router, routed experts (``gate_up [E, 2F, H]``: gate rows first; ``down [E, H, F]``) and the shared expert."""

    router: Tensor
    router_bias: Tensor
    gate_up: Weight
    down: Weight
    shared_gate_up: Weight
    shared_down: Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramParameters:
    """N-gram memory: ``table [rows, d]``, ``kv [H(m+1), cols d]`` FP8, ``query_weight`` and ``key_weight [m, H]``."""

    table: QuantTensor
    kv: Weight
    query_weight: Tensor
    key_weight: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """One decoder or draft layer."""

    attention_norm: Tensor
    feed_forward_norm: Tensor
    attention_mix: MixParameters
    feed_forward_mix: MixParameters
    attention: AttentionParameters
    experts: ExpertParameters
    engram: EngramParameters | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftParameters:
    """The draft module: feature projection, its layers, and its heads."""

    feature_projection: Weight
    feature_norm: Tensor
    layers: tuple[LayerParameters, ...]
    norm: Tensor
    markov_embedding: Tensor
    markov_head: Tensor
    confidence: Tensor
    head_mix: MixParameters | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """A whole text model; ``head_mix`` exists only in models whose mixes are not shifted."""

    embedding: Tensor
    layers: tuple[LayerParameters, ...]
    norm: Tensor
    head: Tensor
    head_mix: MixParameters | None
    draft: DraftParameters | None
