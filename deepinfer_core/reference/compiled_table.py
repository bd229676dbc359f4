"""Compiled implementations of the CPU backend, tried before those made of torch calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.attention.metadata import entry_metadata, entry_slots, window_slots
from deepinfer_core.ops.attention.project_output import project_output
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.attention.window_indices import window_indices
from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.embedding.vocabulary_logits import vocabulary_logits
from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.hash_rows import hash_rows
from deepinfer_core.ops.engram.ngram_context import ngram_context
from deepinfer_core.ops.hyper_connection.enter import enter
from deepinfer_core.ops.hyper_connection.streams import collapse, update
from deepinfer_core.ops.indexer.select_entries import select_entries, select_within_candidates
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.rotate_store import rotate_store
from deepinfer_core.ops.kv_cache.store import store
from deepinfer_core.ops.limits import Limit, Site, at_most, attribute_in, needs_package
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import expert_layer, expert_mlp
from deepinfer_core.ops.moe.select_experts import route, select_experts
from deepinfer_core.ops.norm.rms_norm import rms_norm
from deepinfer_core.ops.norm.rms_norm_quantize import rms_norm_quantize
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.sampling.race import race
from deepinfer_core.ops.speculation.confidence import confidence
from deepinfer_core.ops.speculation.markov_logits import markov_logits
from deepinfer_core.reference.compiled_attention import (
    pack_output_maps,
    run_project_output,
    run_sparse_decode,
    run_sparse_prefill,
)
from deepinfer_core.reference.compiled_experts import pack_expert_maps, run_expert_layer, run_expert_mlp
from deepinfer_core.reference.compiled_metadata import (
    run_entry_metadata,
    run_entry_slots,
    run_hash_rows,
    run_ngram_context,
    run_window_indices,
    run_window_slots,
)
from deepinfer_core.reference.compiled_products import (
    pack_maps,
    run_grouped_linear,
    run_linear,
    run_vocabulary_logits,
)
from deepinfer_core.reference.compiled_race import run_race
from deepinfer_core.reference.compiled_routing import run_compress_pairs, run_route, run_select_experts
from deepinfer_core.reference.compiled_rows import (
    run_apply_rotary,
    run_quantize,
    run_rms_norm,
    run_rms_norm_quantize,
    run_rotate_store,
    run_store,
)
from deepinfer_core.reference.compiled_selection import run_select_entries, run_select_within_candidates
from deepinfer_core.reference.compiled_streams import run_collapse, run_enter, run_gate, run_update
from deepinfer_core.reference.compiled_tokens import pack_markov, run_confidence, run_greedy, run_markov_logits
from deepinfer_core.reference.engram import pack_gate
from deepinfer_core.reference.limits import FLOAT32

Pack = Callable[[Mapping[str, Any], Site], Mapping[str, Any]]

_COMPILER = needs_package("numba")
_NARROW_HEADS = at_most("D", 256)
"""Wider heads are matrices for the library, which is faster then."""
_POWER_OF_TWO_SCALES = attribute_in("format", "mxfp8", "mxfp4")


def _by_row(run: Callable[..., Any], *limits: Limit, pack: Pack | None = None) -> tuple[Implementation]:
    """Works on each row as if it were alone."""
    return (Implementation(run, (_COMPILER, FLOAT32, *limits), pack, row_invariant=True, note="compiled"),)


def _by_step(run: Callable[..., Any]) -> tuple[Implementation]:
    """Looks at all rows of the step together and claims nothing about one alone."""
    return (Implementation(run, (_COMPILER, FLOAT32), note="compiled"),)


def _with_products(run: Callable[..., Any], pack: Pack) -> tuple[Implementation, ...]:
    """Works on each row as if it were alone; what it keeps of the weights is ``weight_copies``."""
    note = "compiled; dense copies of the weights, or their codes"
    return (Implementation(run, (_COMPILER, FLOAT32), pack, row_invariant=True, note=note),)


COMPILED: Mapping[Op[..., Any], tuple[Implementation, ...]] = {
    apply_rotary: _by_row(run_apply_rotary),
    collapse: _by_row(run_collapse),
    compress_pairs: _by_step(run_compress_pairs),
    confidence: _by_row(run_confidence),
    enter: _by_row(run_enter, attribute_in("shifted", True)),
    entry_metadata: _by_row(run_entry_metadata),
    entry_slots: _by_row(run_entry_slots),
    expert_layer: _with_products(run_expert_layer, pack_expert_maps),
    expert_mlp: _with_products(run_expert_mlp, pack_expert_maps),
    gate: _by_row(run_gate, pack=pack_gate),
    greedy: _by_row(run_greedy),
    grouped_linear: _with_products(run_grouped_linear, pack_maps),
    hash_rows: _by_row(run_hash_rows),
    linear: _with_products(run_linear, pack_maps),
    markov_logits: _with_products(run_markov_logits, pack_markov),
    ngram_context: _by_step(run_ngram_context),
    project_output: _with_products(run_project_output, pack_output_maps),
    quantize: _by_row(run_quantize, _POWER_OF_TWO_SCALES),
    race: _by_row(run_race),
    rms_norm: _by_row(run_rms_norm),
    rms_norm_quantize: _by_row(run_rms_norm_quantize, _POWER_OF_TWO_SCALES),
    rotate_store: _by_row(run_rotate_store),
    route: _with_products(run_route, pack_maps),
    select_entries: _by_step(run_select_entries),
    select_experts: _by_row(run_select_experts),
    select_within_candidates: _by_step(run_select_within_candidates),
    sparse_decode: _by_row(run_sparse_decode, _NARROW_HEADS),
    sparse_prefill: _by_row(run_sparse_prefill, _NARROW_HEADS),
    store: _by_row(run_store),
    update: _by_row(run_update),
    vocabulary_logits: _with_products(run_vocabulary_logits, pack_maps),
    window_indices: _by_step(run_window_indices),
    window_slots: _by_row(run_window_slots),
}
