"""Small valid configs, the odd ones above all: every optional part off, alone, or in another place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.engine.opening import open_model
from deepinfer_core.runtime.model import BoundModel

WINDOW = 16

_TOP = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 250,
    "tokenizer_compatibility": "native",
    "quantization_config": {
        "quant_method": "fp8", "expert_dtype": "fp4", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
    },
    "vision_config": {"num_hidden_layers": 0},
}  # fmt: skip

_TEXT = {
    "vocab_size": 256, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 6,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 32, "q_lora_rank": 32,
    "o_lora_rank": 32, "o_groups": 2, "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-20,
    "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False, "max_position_embeddings": 512,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096,
    },
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "sliding_window": WINDOW,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0], "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 5],
    "index_n_heads": 2, "index_head_dim": 32, "index_topk": 6, "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3, "candidate_block_size": 4, "hc_mult": 4, "hc_sinkhorn_iters": 8, "hc_eps": 1e-6,
    "engram_layer_ids": [0, 2], "engram_max_ngram_size": 4, "engram_vocab_size": 40, "engram_n_heads": 2,
    "engram_head_dim": 32, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 200,
    "num_nextn_predict_layers": 1, "dspark_block_size": 5, "dspark_noise_token_id": 3,
    "dspark_target_layer_ids": [4, 5], "dspark_markov_rank": 32, "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}  # fmt: skip

NO_DRAFT = {"num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 2, 1, 1, 1]}

CONFIGS: dict[str, Mapping[str, Any]] = {
    "everything": {},
    "index_keys_without_entries": {"index_k_source_layer_ids": [1, 2, 3, 4], "index_source_layer_ids": [1, 2, 3, 4, 5]},
    "no_engram": {"engram_layer_ids": []},
    "no_draft": NO_DRAFT,
    "no_candidates": {"candidate_source_layer_id": None},
    "late_candidate_source": {"candidate_source_layer_id": 4, "index_source_layer_ids": [1, 3, 4, 5]},
    "candidate_block_of_one": {"candidate_block_size": 1, "candidate_topk_blocks": 9},
    "no_rope_scaling": {"rope_scaling": None},
    "mxfp8_entries": {"use_fp4_sparse_kv": False},
    "mixes_not_shifted": {"hc_shifted": False},
    "encoder_of_pairs_only": {
        "num_hidden_layers": 4, "compress_ratios": [2, 2, 1, 1, 0], "kv_source_layer_ids": [0, 2],
        "index_source_layer_ids": [0, 1, 2, 3], "candidate_source_layer_id": 2, "engram_layer_ids": [1],
        "dspark_target_layer_ids": [0, 1],
    },
    "no_encoder": {
        "num_hidden_layers": 3, "compress_ratios": [1, 1, 1, 0], "kv_source_layer_ids": [0],
        "index_source_layer_ids": [0, 2], "candidate_source_layer_id": 0, "engram_layer_ids": [],
        "dspark_target_layer_ids": [0],
    },
    "two_pair_sources_and_no_pairs_before": {
        "compress_ratios": [0, 2, 2, 2, 1, 1, 0], "kv_source_layer_ids": [1, 3, 4],
        "index_source_layer_ids": [1, 2, 3, 4, 5], "candidate_source_layer_id": 4, "dspark_target_layer_ids": [0, 2],
    },
    "odd_window_and_wide_selection": {
        "sliding_window": 13, "index_topk": 300, "candidate_topk_blocks": 75, "index_n_heads": 3,
    },
    "window_of_one": {"sliding_window": 1, "index_topk": 1},
    "bigrams_two_streams_no_clamp": {"engram_max_ngram_size": 2, "hc_mult": 2, "swiglu_limit": None},
    "long_grams_reversed_layers": {"engram_max_ngram_size": 6, "engram_layer_ids": [2, 0], "n_shared_experts": 2},
    "two_draft_layers_short_block": {
        "num_nextn_predict_layers": 2, "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0], "dspark_block_size": 2,
        "dspark_target_layer_ids": [5, 3],
    },
}  # fmt: skip
"""Name -> what differs from a config with every part in it."""


def config_with(changes: Mapping[str, Any]) -> dict[str, Any]:
    """A whole config file with some values of its ``text_config`` replaced."""
    return {**_TOP, "text_config": {**_TEXT, **changes}}


def dummy_model(folder: Path, changes: Mapping[str, Any], numerics: str = "f64") -> BoundModel:
    """A model of random weights with this config, bound to the CPU backend."""
    (folder / "config.json").write_text(json.dumps(config_with(changes)))
    return open_model(str(folder), accelerator="cpu", numerics=numerics, load_format="dummy").model
