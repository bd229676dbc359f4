"""Native implementations of the CPU backend, op by op; everything that is not listed runs by its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.ops.attention.metadata import entry_slots, window_slots
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.embedding.pending_tokens import remember_tokens, resolve_tokens
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.lookup import lookup
from deepinfer_core.ops.hyper_connection.enter import enter
from deepinfer_core.ops.hyper_connection.mixes import mixes
from deepinfer_core.ops.hyper_connection.retain_rows import retain_rows
from deepinfer_core.ops.hyper_connection.streams import collapse, update
from deepinfer_core.ops.indexer.index_scores import index_scores
from deepinfer_core.ops.indexer.select_entries import select_entries, select_within_candidates
from deepinfer_core.ops.indexer.top_k import block_maximum, top_k
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.rotate_store import extend_window, rotate_store
from deepinfer_core.ops.kv_cache.store import load, store
from deepinfer_core.ops.limits import Limit, Site, attribute_in
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import expert_layer, expert_mlp, swiglu
from deepinfer_core.ops.moe.select_experts import route, select_experts
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.ops.quantize.quantize import dequantize, quantize
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.ops.sampling.apply_penalties import apply_penalties
from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.top_logprobs import top_logprobs
from deepinfer_core.ops.speculation.confidence import confidence
from deepinfer_core.ops.speculation.draft_features import draft_features
from deepinfer_core.ops.speculation.markov_logits import markov_logits
from deepinfer_core.reference.attention import pack_output, run_project_output, run_sparse_decode
from deepinfer_core.reference.compiled_table import COMPILED
from deepinfer_core.reference.engram import pack_gate, run_gate, run_lookup
from deepinfer_core.reference.experts import pack_experts, run_expert_layer, run_expert_mlp, run_swiglu
from deepinfer_core.reference.hyper_connection import run_collapse, run_enter, run_mixes, run_update
from deepinfer_core.reference.kv_cache import run_extend_window, run_load, run_rotate_store, run_store
from deepinfer_core.reference.limits import COPIES, FLOAT32, FLOAT64, ROW_INVARIANT_PRODUCTS
from deepinfer_core.reference.linear import pack_groups, run_grouped_linear, run_linear, run_vocabulary_logits
from deepinfer_core.reference.metadata import run_entry_slots, run_window_slots
from deepinfer_core.reference.norm import run_rms_norm, run_rms_norm_quantize
from deepinfer_core.reference.pairs import run_compress_pairs
from deepinfer_core.reference.pending_tokens import run_remember_tokens, run_resolve_tokens
from deepinfer_core.reference.prefill_attention import run_sparse_prefill
from deepinfer_core.reference.products import pack_dense
from deepinfer_core.reference.quantize import run_dequantize, run_quantize
from deepinfer_core.reference.retain_rows import run_retain_rows
from deepinfer_core.reference.rotary import run_apply_rotary
from deepinfer_core.reference.routing import run_route, run_select_experts
from deepinfer_core.reference.sampling import run_apply_penalties, run_process_logits, run_top_logprobs
from deepinfer_core.reference.selection import run_index_scores, run_select_entries, run_select_within_candidates
from deepinfer_core.reference.speculation import run_confidence, run_draft_features, run_markov_logits
from deepinfer_core.reference.top_k import run_block_maximum, run_top_k

Pack = Callable[[Mapping[str, Any], Site], Mapping[str, Any]]


def _by_row(run: Callable[..., Any], *limits: Limit, pack: Pack | None = None) -> tuple[Implementation]:
    """Works on each row as if it were alone."""
    return (Implementation(run, (FLOAT32, *limits), pack, row_invariant=True),)


def _by_step(run: Callable[..., Any]) -> tuple[Implementation]:
    """Looks at all rows of the step together and claims nothing about one alone."""
    return (Implementation(run, (FLOAT32,)),)


def _with_products(run: Callable[..., Any], *limits: Limit, pack: Pack | None = None) -> tuple[Implementation, ...]:
    """Works on each row as if it were alone, as far as this machine's products do."""
    note = "dense copies of the weights" if pack else ""
    limits = (*limits, COPIES) if pack else limits
    return (
        Implementation(run, (FLOAT32, *limits, ROW_INVARIANT_PRODUCTS), pack, row_invariant=True, note=note),
        Implementation(run, (FLOAT32, *limits), pack, note=note),
    )


def _exact(run: Callable[..., Any], pack: Pack) -> tuple[Implementation]:
    """The same in float64."""
    return (Implementation(run, (FLOAT64, COPIES), pack, note="dense copies of the weights"),)


_WITH_TORCH: Mapping[Op[..., Any], tuple[Implementation, ...]] = {
    apply_penalties: _by_row(run_apply_penalties),
    apply_rotary: _by_row(run_apply_rotary),
    block_maximum: _by_row(run_block_maximum),
    confidence: _by_row(run_confidence),
    collapse: _with_products(run_collapse),
    compress_pairs: _by_step(run_compress_pairs),
    draft_features: _by_row(run_draft_features),
    dequantize: (Implementation(run_dequantize, row_invariant=True),),
    enter: _with_products(run_enter, attribute_in("shifted", True)),
    entry_slots: (Implementation(run_entry_slots, row_invariant=True),),
    expert_layer: _with_products(run_expert_layer, pack=pack_experts),
    expert_mlp: _with_products(run_expert_mlp, pack=pack_experts),
    extend_window: _by_row(run_extend_window),
    gate: _by_row(run_gate, pack=pack_gate),
    grouped_linear: _with_products(run_grouped_linear, pack=pack_groups) + _exact(run_grouped_linear, pack_groups),
    index_scores: _by_step(run_index_scores),
    linear: _with_products(run_linear, pack=pack_dense) + _exact(run_linear, pack_dense),
    load: _by_row(run_load),
    lookup: _by_row(run_lookup),
    markov_logits: _with_products(run_markov_logits),
    mixes: _with_products(run_mixes),
    process_logits: _by_row(run_process_logits),
    project_output: _with_products(run_project_output, pack=pack_output),
    quantize: _by_row(run_quantize),
    remember_tokens: (Implementation(run_remember_tokens, row_invariant=True),),
    resolve_tokens: (Implementation(run_resolve_tokens, row_invariant=True),),
    retain_rows: (Implementation(run_retain_rows, row_invariant=True),),
    rms_norm: _by_row(run_rms_norm),
    rms_norm_quantize: _by_row(run_rms_norm_quantize, attribute_in("format", "mxfp8", "mxfp4")),
    rotate_store: _by_row(run_rotate_store),
    route: _with_products(run_route, pack=pack_dense),
    select_entries: _by_step(run_select_entries),
    select_experts: _by_row(run_select_experts),
    select_within_candidates: _by_step(run_select_within_candidates),
    sparse_decode: _with_products(run_sparse_decode),
    sparse_prefill: _by_step(run_sparse_prefill),
    store: _by_row(run_store),
    swiglu: _by_row(run_swiglu),
    top_logprobs: _by_row(run_top_logprobs),
    top_k: _by_row(run_top_k),
    update: _by_row(run_update),
    vocabulary_logits: _with_products(run_vocabulary_logits, pack=pack_dense)
    + _exact(run_vocabulary_logits, pack_dense),
    window_slots: (Implementation(run_window_slots, row_invariant=True),),
}

TABLE = OpTable({op: (*COMPILED.get(op, ()), *_WITH_TORCH.get(op, ())) for op in {**_WITH_TORCH, **COMPILED}})
