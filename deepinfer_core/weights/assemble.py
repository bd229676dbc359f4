"""Named tensors of a checkpoint -> the parameter records of the model (spec model/02)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.model.parameters import (
    AttentionParameters,
    CompressorParameters,
    DraftParameters,
    EngramParameters,
    ExpertParameters,
    IndexerParameters,
    LayerParameters,
    MixParameters,
    ModelParameters,
)
from deepinfer_core.tensor import QuantTensor
from deepinfer_core.weights.names import scale_name
from deepinfer_core.weights.reader import TensorSource


def assemble(architecture: ModelArchitecture, source: TensorSource) -> ModelParameters:
    """Build the records of a whole text model.

    Tensors stay views of ``source`` where the record holds what is stored. Routed experts are stacked, and gate and
    up projections joined with the gate rows first; that copies them.
    """
    num_experts = architecture.experts.num_experts
    return ModelParameters(
        embedding=source.tensor("embed.weight"),
        layers=tuple(
            _layer(
                source,
                f"layers.{layer}.",
                num_experts,
                compressor=_compressor(architecture, source, layer),
                indexer=_indexer(architecture, source, layer),
                engram=_engram(architecture, source, layer),
            )
            for layer in range(architecture.num_layers)
        ),
        norm=source.tensor("norm.weight"),
        head=source.tensor("head.weight"),
        head_mix=_head_mix(architecture, source, ""),
        draft=_draft(architecture, source),
    )


def _layer(
    source: TensorSource,
    prefix: str,
    num_experts: int,
    *,
    compressor: CompressorParameters | None = None,
    indexer: IndexerParameters | None = None,
    engram: EngramParameters | None = None,
) -> LayerParameters:
    """One layer; a draft layer is a backbone layer without optional parts."""
    return LayerParameters(
        attention_norm=source.tensor(f"{prefix}attn_norm.weight"),
        feed_forward_norm=source.tensor(f"{prefix}ffn_norm.weight"),
        attention_mix=_mix(source, f"{prefix}hc_attn"),
        feed_forward_mix=_mix(source, f"{prefix}hc_ffn"),
        attention=AttentionParameters(
            query_a=_linear(source, f"{prefix}attn.wq_a.weight"),
            query_norm=source.tensor(f"{prefix}attn.q_norm.weight"),
            query_b=_linear(source, f"{prefix}attn.wq_b.weight"),
            kv=_linear(source, f"{prefix}attn.wkv.weight"),
            kv_norm=source.tensor(f"{prefix}attn.kv_norm.weight"),
            output_a=_linear(source, f"{prefix}attn.wo_a.weight"),
            output_b=_linear(source, f"{prefix}attn.wo_b.weight"),
            sink=source.tensor(f"{prefix}attn.attn_sink"),
            compressor=compressor,
            indexer=indexer,
        ),
        experts=_experts(source, f"{prefix}ffn.", num_experts),
        engram=engram,
    )


def _compressor(architecture: ModelArchitecture, source: TensorSource, layer: int) -> CompressorParameters | None:
    if layer not in architecture.kv_source_layers:
        return None
    prefix = f"layers.{layer}.attn.compressor."
    has_gate = architecture.compress_ratios[layer] != 1
    return CompressorParameters(
        value=source.tensor(f"{prefix}wkv.weight").to(torch.bfloat16),
        gate=source.tensor(f"{prefix}wgate.weight").to(torch.bfloat16) if has_gate else None,
        norm=source.tensor(f"{prefix}norm.weight"),
    )


def _indexer(architecture: ModelArchitecture, source: TensorSource, layer: int) -> IndexerParameters | None:
    if layer not in architecture.index_source_layers:
        return None
    prefix = f"layers.{layer}.attn.indexer."
    has_key = layer in architecture.index_key_source_layers
    return IndexerParameters(
        query=_linear(source, f"{prefix}wq_b.weight"),
        head_weights=source.tensor(f"{prefix}weights_proj.weight"),
        key=source.tensor(f"{prefix}wk.weight") if has_key else None,
        key_norm=source.tensor(f"{prefix}k_norm.weight") if has_key else None,
    )


def _engram(architecture: ModelArchitecture, source: TensorSource, layer: int) -> EngramParameters | None:
    if architecture.engram is None or layer not in architecture.engram.layer_ids:
        return None
    prefix = f"layers.{layer}.engram."
    return EngramParameters(
        table=_quantized(source, f"{prefix}embed.weight", "mxfp8"),
        kv=_linear(source, f"{prefix}wkv.weight"),
        query_weight=source.tensor(f"{prefix}q_weight"),
        key_weight=source.tensor(f"{prefix}k_weight"),
    )


def _draft(architecture: ModelArchitecture, source: TensorSource) -> DraftParameters | None:
    draft = architecture.draft
    if draft is None:
        return None
    last = f"mtp.{draft.num_layers - 1}."
    return DraftParameters(
        feature_projection=_linear(source, "mtp.0.main_proj.weight"),
        feature_norm=source.tensor("mtp.0.main_norm.weight"),
        layers=tuple(_layer(source, f"mtp.{layer}.", draft.experts.num_experts) for layer in range(draft.num_layers)),
        norm=source.tensor(f"{last}norm.weight"),
        markov_embedding=source.tensor(f"{last}markov_head.embed.weight"),
        markov_head=source.tensor(f"{last}markov_head.head.weight"),
        confidence=source.tensor(f"{last}confidence_head.proj.weight"),
        head_mix=_head_mix(architecture, source, last),
    )


def _mix(source: TensorSource, prefix: str) -> MixParameters:
    return MixParameters(
        function=source.tensor(f"{prefix}_fn"),
        base=source.tensor(f"{prefix}_base"),
        scale=source.tensor(f"{prefix}_scale"),
    )


def _head_mix(architecture: ModelArchitecture, source: TensorSource, prefix: str) -> MixParameters | None:
    return None if architecture.hyper_connection.shifted else _mix(source, f"{prefix}hc_head")


def _experts(source: TensorSource, prefix: str, num_experts: int) -> ExpertParameters:
    return ExpertParameters(
        router=source.tensor(f"{prefix}gate.weight"),
        router_bias=source.tensor(f"{prefix}gate.bias"),
        gate_up=_stacked(source, f"{prefix}experts.", num_experts, ("w1", "w3")),
        down=_stacked(source, f"{prefix}experts.", num_experts, ("w2",)),
        shared_gate_up=_joined(source, f"{prefix}shared_experts.w1.weight", f"{prefix}shared_experts.w3.weight"),
        shared_down=_linear(source, f"{prefix}shared_experts.w2.weight"),
    )


def _linear(source: TensorSource, name: str) -> QuantTensor:
    return _quantized(source, name, "fp8_block32")


def _quantized(source: TensorSource, name: str, format_name: str) -> QuantTensor:
    return QuantTensor(source.tensor(name), _bytes(source.tensor(scale_name(name))), format_name)


def _joined(source: TensorSource, first: str, second: str) -> QuantTensor:
    """Two FP8 matrices as one, rows of ``first`` before those of ``second``; both have whole blocks of 32 rows."""
    upper, lower = _linear(source, first), _linear(source, second)
    data = torch.cat((_bytes(upper.data), _bytes(lower.data))).view(torch.float8_e4m3fn)
    return QuantTensor(data, torch.cat((upper.scale, lower.scale)), upper.format)


def _stacked(source: TensorSource, prefix: str, num_experts: int, matrices: tuple[str, ...]) -> QuantTensor:
    """The named FP4 matrices of every expert, joined along their rows and stacked along a new first axis."""
    data = _stack(source, [[f"{prefix}{expert}.{name}.weight" for name in matrices] for expert in range(num_experts)])
    scale = _stack(source, [[f"{prefix}{expert}.{name}.scale" for name in matrices] for expert in range(num_experts)])
    return QuantTensor(data, scale, "mxfp4")


def _stack(source: TensorSource, names: list[list[str]]) -> Tensor:
    """Bytes ``[experts, rows, width]``; each tensor is copied once, straight to its place."""
    first = source.tensor(names[0][0])
    rows, width = first.shape
    stack = torch.empty(len(names), rows * len(names[0]), width, dtype=torch.uint8, device=first.device)
    for expert, matrices in enumerate(names):
        for number, name in enumerate(matrices):
            stack[expert, number * rows : (number + 1) * rows].copy_(_bytes(source.tensor(name)))
    return stack


def _bytes(tensor: Tensor) -> Tensor:
    """The same storage as plain bytes."""
    return tensor.view(torch.uint8)
