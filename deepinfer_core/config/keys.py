"""The keys of a published config file: where each value goes and what it may be (spec model/01)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deepinfer_core.config.rules import (
    Rule,
    boolean,
    clamp_or_off,
    distinct_layers,
    exactly,
    integer,
    integers,
    layer_or_off,
    number,
    one_of,
    ratios,
    sorted_layers,
    unless_null,
)

REQUIRED: Final = object()
"""Default of a key that has none."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file.

    Attributes:
        name: Dotted name, the section first.
        rule: What the value may be.
        fills: Field of the architecture that takes the value, dotted; empty for values that are only checked.
        default: Value of a key that is absent or null, or ``REQUIRED``.
        part: Optional part of the model that the key belongs to; the key counts only in models that have it.
        alias: Another spelling, used by older writers.
    """

    name: str
    rule: Rule
    fills: str = ""
    default: object = REQUIRED
    part: str = ""
    alias: str = ""

    @property
    def section(self) -> str:
        """Dotted name of the enclosing object; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]


_count = integer(1)
_token = integer(0)
_positive = number(above=0)

_TOP = (
    Key("architectures", exactly(["DeepseekV41ForCausalLM"])),
    Key("model_type", exactly("deepseek_v41")),
    Key("dtype", exactly("bfloat16"), alias="torch_dtype"),
    Key("bos_token_id", _token, "bos_token_id"),
    Key("eos_token_id", _token, "eos_token_id"),
    Key("pad_token_id", _token, "pad_token_id"),
    Key("image_token_id", _token, "image_token_id"),
    Key("tokenizer_compatibility", one_of("release", "native"), "tokenizer_compatibility", "release"),
)

_TEXT = (
    Key("text_config.vocab_size", _count, "vocab_size"),
    Key("text_config.hidden_size", _count, "hidden_size"),
    Key("text_config.num_hidden_layers", _count, "num_layers"),
    Key("text_config.max_position_embeddings", _count, "max_position_embeddings"),
    Key("text_config.rms_norm_eps", number(at_least=0), "norm_eps"),
    Key("text_config.tie_word_embeddings", exactly(False)),
    Key("text_config.num_attention_heads", _count, "attention.num_heads"),
    Key("text_config.num_key_value_heads", exactly(1)),
    Key("text_config.head_dim", _count, "attention.head_dim"),
    Key("text_config.qk_rope_head_dim", _count, "attention.rotary_dim"),
    Key("text_config.q_lora_rank", _count, "attention.query_rank"),
    Key("text_config.o_lora_rank", _count, "attention.output_rank"),
    Key("text_config.o_groups", _count, "attention.output_groups"),
    Key("text_config.sliding_window", _count, "attention.sliding_window"),
    Key("text_config.rope_theta", _positive, "attention.rope_theta"),
    Key("text_config.compress_rope_theta", _positive, "attention.compressed_rope_theta"),
    Key("text_config.use_fp4_sparse_kv", boolean, "attention.fp4_main_cache", True),
    Key("text_config.attention_bias", exactly(False)),
    Key("text_config.attention_dropout", exactly(0.0)),
    Key("text_config.hidden_act", exactly("silu")),
    Key("text_config.moe_intermediate_size", _count, "experts.inner_size"),
    Key("text_config.n_routed_experts", _count, "experts.num_experts"),
    Key("text_config.n_shared_experts", _count, "experts.num_shared"),
    Key("text_config.num_experts_per_tok", _count, "experts.experts_per_token"),
    Key("text_config.routed_scaling_factor", number(), "experts.routed_scaling"),
    Key("text_config.swiglu_limit", clamp_or_off, "experts.swiglu_limit"),
    Key("text_config.scoring_func", exactly("sqrtsoftplus")),
    Key("text_config.topk_method", exactly("noaux_tc")),
    Key("text_config.norm_topk_prob", exactly(True)),
    Key("text_config.gate_temp", exactly(1.0), default=1.0),
    Key("text_config.compress_ratios", ratios, "compress_ratios"),
    Key("text_config.kv_source_layer_ids", sorted_layers, "kv_source_layers"),
    Key("text_config.index_source_layer_ids", sorted_layers, "index_source_layers"),
    Key("text_config.index_n_heads", _count, "indexer.num_heads"),
    Key("text_config.index_head_dim", _count, "indexer.head_dim"),
    Key("text_config.index_topk", _count, "indexer.top_k"),
    Key("text_config.candidate_source_layer_id", layer_or_off, "indexer.candidate_source_layer"),
    Key("text_config.candidate_topk_blocks", _count, "indexer.candidate_blocks", part="candidates"),
    Key("text_config.candidate_block_size", _count, "indexer.candidate_block_size", part="candidates"),
    Key("text_config.hc_mult", _count, "hyper_connection.num_streams"),
    Key("text_config.hc_sinkhorn_iters", _count, "hyper_connection.sinkhorn_iterations"),
    Key("text_config.hc_eps", number(at_least=0), "hyper_connection.eps"),
    Key("text_config.hc_shifted", boolean, "hyper_connection.shifted", True),
    Key("text_config.num_nextn_predict_layers", integer(0), "draft.num_layers", 0),
    Key("text_config.engram_layer_ids", distinct_layers, "engram.layer_ids", ()),
)

INDEX_KEY_SOURCES = Key("text_config.index_k_source_layer_ids", sorted_layers, "index_key_source_layers", None)
"""Its default is the value of ``kv_source_layer_ids``."""

_ROPE_SCALING = (
    Key("text_config.rope_scaling.rope_type", exactly("yarn"), alias="type", part="rope_scaling"),
    Key("text_config.rope_scaling.factor", _positive, "attention.rope_scaling.factor", part="rope_scaling"),
    Key("text_config.rope_scaling.beta_fast", _positive, "attention.rope_scaling.beta_fast", part="rope_scaling"),
    Key("text_config.rope_scaling.beta_slow", _positive, "attention.rope_scaling.beta_slow", part="rope_scaling"),
    Key(
        "text_config.rope_scaling.original_max_position_embeddings",
        _count,
        "attention.rope_scaling.original_max_position_embeddings",
        part="rope_scaling",
    ),
    Key("text_config.rope_scaling.mscale", exactly(False), default=False, part="rope_scaling"),
)

_ENGRAM = (
    Key("text_config.engram_num_embeddings", integers(1), default=None, part="engram"),
    Key("text_config.engram_max_ngram_size", integer(2), "engram.max_ngram", part="engram"),
    Key("text_config.engram_vocab_size", _count, "engram.prime_start", part="engram"),
    Key("text_config.engram_n_heads", _count, "engram.heads_per_ngram", part="engram"),
    Key("text_config.engram_head_dim", _count, "engram.head_dim", part="engram"),
    Key("text_config.engram_pad_token_id", _token, "engram.pad_token_id", part="engram"),
    Key("text_config.engram_compressed_vocab_size", _count, "engram.compressed_vocab_size", part="engram"),
)

_DRAFT = (
    Key("text_config.dspark_block_size", _count, "draft.block_size", part="draft"),
    Key("text_config.dspark_noise_token_id", _token, "draft.noise_token_id", part="draft"),
    Key("text_config.dspark_target_layer_ids", distinct_layers, "draft.target_layer_ids", part="draft"),
    Key("text_config.dspark_target_attn_input", exactly(True), default=True, part="draft"),
    Key("text_config.dspark_markov_rank", _count, "draft.markov_rank", part="draft"),
    Key("text_config.dspark_n_routed_experts", _count, "draft.experts.num_experts", part="draft"),
    Key("text_config.dspark_num_experts_per_tok", _count, "draft.experts.experts_per_token", part="draft"),
)

_VISION = (
    Key("vision_config.num_hidden_layers", integer(0), "vision.num_layers", 32),
    Key("vision_config.hidden_size", _count, "vision.hidden_size", part="vision"),
    Key("vision_config.num_attention_heads", _count, "vision.num_heads", 16, part="vision"),
    Key("vision_config.intermediate_size", _count, "vision.intermediate_size", 2816, part="vision"),
    Key("vision_config.patch_size", _count, "vision.patch_size", part="vision"),
    Key("vision_config.rope_theta", _positive, "vision.rope_theta", 10000.0, part="vision"),
    Key("vision_config.downsample_ratio", _count, "vision.downsample_ratio", part="vision"),
    Key("vision_config.max_image_tokens", integer(4), "vision.max_image_tokens", part="vision"),
    Key("vision_config.min_pixels", _count, "vision.min_pixels", part="vision"),
    Key("vision_config.max_wh_ratio", unless_null(number(at_least=1)), "vision.max_width_height_ratio", part="vision"),
)

_REQUANTISE = "; a checkpoint in another format has to be converted first"

_QUANTIZATION = (
    Key("quantization_config.quant_method", exactly("fp8", _REQUANTISE)),
    Key("quantization_config.expert_dtype", exactly("fp4", _REQUANTISE)),
    Key("quantization_config.activation_scheme", exactly("dynamic", _REQUANTISE)),
    Key("quantization_config.weight_block_size", exactly([32, 32], _REQUANTISE)),
    Key("quantization_config.scale_fmt", exactly("ue8m0", _REQUANTISE)),
    Key("quantization_config.fmt", exactly("e4m3", _REQUANTISE), default="e4m3"),
)

KEYS: tuple[Key, ...] = (
    *_TOP,
    *_TEXT,
    INDEX_KEY_SOURCES,
    *_ROPE_SCALING,
    *_ENGRAM,
    *_DRAFT,
    *_VISION,
    *_QUANTIZATION,
)
"""Every key that is read, in the order in which problems are reported."""

SECTIONS: dict[str, bool] = {
    "text_config": True,
    "text_config.rope_scaling": False,
    "vision_config": True,
    "quantization_config": True,
}
"""Objects inside the file, and whether each must be there."""
