"""Native implementations of the CPU backend, op by op; everything that is not listed runs by its reference."""

from __future__ import annotations

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.ops.attention.metadata import entry_slots, window_slots
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.lookup import lookup
from deepinfer_core.ops.hyper_connection.enter import enter
from deepinfer_core.ops.hyper_connection.mixes import mixes
from deepinfer_core.ops.hyper_connection.streams import collapse, update
from deepinfer_core.ops.indexer.index_scores import index_scores
from deepinfer_core.ops.indexer.select_entries import select_entries, select_within_candidates
from deepinfer_core.ops.indexer.top_k import block_maximum, top_k
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.rotate_store import extend_window, rotate_store
from deepinfer_core.ops.kv_cache.store import load, store
from deepinfer_core.ops.limits import attribute_in, dtype_in
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import expert_layer, expert_mlp, swiglu
from deepinfer_core.ops.moe.select_experts import route, select_experts
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.ops.quantize.quantize import dequantize, quantize
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.reference.attention import pack_output, run_project_output, run_sparse_decode
from deepinfer_core.reference.engram import pack_gate, run_gate, run_lookup
from deepinfer_core.reference.experts import pack_experts, run_expert_layer, run_expert_mlp, run_swiglu
from deepinfer_core.reference.hyper_connection import run_collapse, run_enter, run_mixes, run_update
from deepinfer_core.reference.kv_cache import run_extend_window, run_load, run_rotate_store, run_store
from deepinfer_core.reference.linear import pack_groups, run_grouped_linear, run_linear, run_vocabulary_logits
from deepinfer_core.reference.metadata import run_entry_slots, run_window_slots
from deepinfer_core.reference.norm import run_rms_norm, run_rms_norm_quantize
from deepinfer_core.reference.pairs import run_compress_pairs
from deepinfer_core.reference.prefill_attention import run_sparse_prefill
from deepinfer_core.reference.products import pack_dense
from deepinfer_core.reference.quantize import run_dequantize, run_quantize
from deepinfer_core.reference.rotary import run_apply_rotary
from deepinfer_core.reference.routing import run_route, run_select_experts
from deepinfer_core.reference.selection import run_index_scores, run_select_entries, run_select_within_candidates
from deepinfer_core.reference.top_k import run_block_maximum, run_top_k

_FLOAT32 = (dtype_in("bf16", "f32"),)
"""Works in float32; float64 activations, which exist for exact comparison, run by reference."""

_DENSE = "weights dequantised once; dense product"

TABLE = OpTable(
    {
        apply_rotary: (Implementation(run_apply_rotary, _FLOAT32),),
        block_maximum: (Implementation(run_block_maximum, _FLOAT32),),
        collapse: (Implementation(run_collapse, _FLOAT32),),
        compress_pairs: (Implementation(run_compress_pairs, _FLOAT32),),
        dequantize: (Implementation(run_dequantize),),
        enter: (Implementation(run_enter, (*_FLOAT32, attribute_in("shifted", True))),),
        entry_slots: (Implementation(run_entry_slots),),
        expert_layer: (Implementation(run_expert_layer, _FLOAT32, pack=pack_experts, note=_DENSE),),
        expert_mlp: (Implementation(run_expert_mlp, _FLOAT32, pack=pack_experts, note=_DENSE),),
        extend_window: (Implementation(run_extend_window, _FLOAT32),),
        gate: (Implementation(run_gate, _FLOAT32, pack=pack_gate),),
        grouped_linear: (Implementation(run_grouped_linear, pack=pack_groups, note=_DENSE),),
        index_scores: (Implementation(run_index_scores, _FLOAT32),),
        linear: (Implementation(run_linear, pack=pack_dense, note=_DENSE),),
        load: (Implementation(run_load, _FLOAT32),),
        lookup: (Implementation(run_lookup, _FLOAT32),),
        mixes: (Implementation(run_mixes, _FLOAT32),),
        project_output: (Implementation(run_project_output, _FLOAT32, pack=pack_output, note=_DENSE),),
        quantize: (Implementation(run_quantize, _FLOAT32),),
        rms_norm: (Implementation(run_rms_norm, _FLOAT32),),
        rms_norm_quantize: (
            Implementation(run_rms_norm_quantize, (*_FLOAT32, attribute_in("format", "mxfp8", "mxfp4"))),
        ),
        route: (Implementation(run_route, _FLOAT32, pack=pack_dense, note=_DENSE),),
        rotate_store: (Implementation(run_rotate_store, _FLOAT32),),
        select_entries: (Implementation(run_select_entries, _FLOAT32),),
        select_experts: (Implementation(run_select_experts, _FLOAT32),),
        select_within_candidates: (Implementation(run_select_within_candidates, _FLOAT32),),
        sparse_decode: (Implementation(run_sparse_decode, _FLOAT32),),
        sparse_prefill: (Implementation(run_sparse_prefill, _FLOAT32),),
        store: (Implementation(run_store, _FLOAT32),),
        swiglu: (Implementation(run_swiglu, _FLOAT32),),
        top_k: (Implementation(run_top_k, _FLOAT32),),
        update: (Implementation(run_update, _FLOAT32),),
        window_slots: (Implementation(run_window_slots),),
        vocabulary_logits: (Implementation(run_vocabulary_logits, pack=pack_dense, note=_DENSE),),
    }
)
