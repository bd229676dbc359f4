"""Op declarations: contract, meaning, reference and cases of everything a backend may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer_core.ops.declare import Op

MODULES = (
    "attention.draft_slots",
    "attention.metadata",
    "attention.project_output",
    "attention.sparse_decode",
    "attention.sparse_prefill",
    "attention.window_indices",
    "embedding.pending_tokens",
    "embedding.token_embedding",
    "embedding.vocabulary_logits",
    "engram.gate",
    "engram.hash_rows",
    "engram.lookup",
    "engram.ngram_context",
    "hyper_connection.enter",
    "hyper_connection.mixes",
    "hyper_connection.retain_rows",
    "hyper_connection.streams",
    "indexer.index_scores",
    "indexer.select_entries",
    "indexer.top_k",
    "kv_cache.compress_pairs",
    "kv_cache.rotate_store",
    "kv_cache.store",
    "linear.grouped_linear",
    "linear.linear",
    "moe.experts",
    "moe.select_experts",
    "norm.rms_norm",
    "norm.rms_norm_quantize",
    "quantize.quantize",
    "rotary.apply_rotary",
    "sampling.apply_logit_bias",
    "sampling.apply_penalties",
    "sampling.apply_token_mask",
    "sampling.finite_rows",
    "sampling.greedy",
    "sampling.process_logits",
    "sampling.race",
    "sampling.sample",
    "sampling.top_logprobs",
    "speculation.accept_prefix",
    "speculation.choose_lengths",
    "speculation.confidence",
    "speculation.draft_features",
    "speculation.markov_logits",
    "speculation.verify",
)
"""Modules below this package that declare ops."""


def catalogue() -> tuple[Op[..., Any], ...]:
    """Every declared op, by name. Imports the references, and with them torch."""
    import importlib

    from deepinfer_core.ops.declare import Op

    modules = [importlib.import_module(f"{__name__}.{module}") for module in MODULES]
    found = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Op) and value.reference.__module__ == module.__name__
    }
    return tuple(found[name] for name in sorted(found))
