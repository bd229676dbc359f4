"""The published names of tensors, as tables: sizes, storage, part of the model (spec model/02 sections 3 to 6)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a name table.

    Attributes:
        suffix: Name below the prefix of the layer or block.
        shape: Logical sizes, each a sum of products of the names of sizes in ``weights.names``, such as
            ``"groups*output_rank"``.
        storage: ``bf16``, ``f32``, ``bf16_or_f32``, ``fp8``, ``fp4`` or ``table``; the last three bring a scale.
        part: Part of the model.
    """

    suffix: str
    shape: tuple[str, ...]
    storage: str
    part: str


GLOBAL = (
    Entry("embed.weight", ("vocab", "hidden"), "bf16", "embedding and head"),
    Entry("norm.weight", ("hidden",), "bf16", "embedding and head"),
    Entry("head.weight", ("vocab", "hidden"), "bf16", "embedding and head"),
)
HEAD_MIX = (
    Entry("hc_head_fn", ("streams", "streams*hidden"), "f32", "hyper-connection"),
    Entry("hc_head_base", ("streams",), "f32", "hyper-connection"),
    Entry("hc_head_scale", ("1",), "f32", "hyper-connection"),
)
LAYER = (
    Entry("hc_attn_fn", ("mixes", "streams*hidden"), "f32", "hyper-connection"),
    Entry("hc_ffn_fn", ("mixes", "streams*hidden"), "f32", "hyper-connection"),
    Entry("hc_attn_base", ("mixes",), "f32", "hyper-connection"),
    Entry("hc_ffn_base", ("mixes",), "f32", "hyper-connection"),
    Entry("hc_attn_scale", ("3",), "f32", "hyper-connection"),
    Entry("hc_ffn_scale", ("3",), "f32", "hyper-connection"),
    Entry("attn_norm.weight", ("hidden",), "bf16", "attention"),
    Entry("ffn_norm.weight", ("hidden",), "bf16", "router and shared expert"),
    Entry("attn.attn_sink", ("heads",), "f32", "attention"),
    Entry("attn.wq_a.weight", ("query_rank", "hidden"), "fp8", "attention"),
    Entry("attn.q_norm.weight", ("query_rank",), "bf16", "attention"),
    Entry("attn.wq_b.weight", ("heads*head_dim", "query_rank"), "fp8", "attention"),
    Entry("attn.wkv.weight", ("head_dim", "hidden"), "fp8", "attention"),
    Entry("attn.kv_norm.weight", ("head_dim",), "bf16", "attention"),
    Entry("attn.wo_a.weight", ("groups*output_rank", "group_heads*head_dim"), "fp8", "attention"),
    Entry("attn.wo_b.weight", ("hidden", "groups*output_rank"), "fp8", "attention"),
    Entry("ffn.gate.weight", ("experts", "hidden"), "bf16", "router and shared expert"),
    Entry("ffn.gate.bias", ("experts",), "f32", "router and shared expert"),
    Entry("ffn.shared_experts.w1.weight", ("shared*inner", "hidden"), "fp8", "router and shared expert"),
    Entry("ffn.shared_experts.w3.weight", ("shared*inner", "hidden"), "fp8", "router and shared expert"),
    Entry("ffn.shared_experts.w2.weight", ("hidden", "shared*inner"), "fp8", "router and shared expert"),
)
IMAGE_ROUTING = (Entry("ffn.gate.bias_vl", ("experts",), "f32", "vision"),)
EXPERT = (
    Entry("w1.weight", ("inner", "hidden"), "fp4", "routed experts"),
    Entry("w3.weight", ("inner", "hidden"), "fp4", "routed experts"),
    Entry("w2.weight", ("hidden", "inner"), "fp4", "routed experts"),
)
COMPRESSOR = (
    Entry("attn.compressor.wkv.weight", ("head_dim", "hidden"), "bf16_or_f32", "attention"),
    Entry("attn.compressor.norm.weight", ("head_dim",), "bf16", "attention"),
)
COMPRESSOR_GATE = (Entry("attn.compressor.wgate.weight", ("head_dim", "hidden"), "bf16_or_f32", "attention"),)
INDEXER = (
    Entry("attn.indexer.wq_b.weight", ("index_heads*index_dim", "query_rank"), "fp8", "attention"),
    Entry("attn.indexer.weights_proj.weight", ("index_heads", "hidden"), "bf16", "attention"),
)
INDEX_KEY = (
    Entry("attn.indexer.wk.weight", ("index_dim", "head_dim"), "bf16", "attention"),
    Entry("attn.indexer.k_norm.weight", ("index_dim",), "bf16", "attention"),
)
ENGRAM = (
    Entry("engram.embed.weight", ("table_rows", "row_width"), "table", "engram"),
    Entry("engram.wkv.weight", ("streams*hidden+hidden", "columns*row_width"), "fp8", "engram"),
    Entry("engram.q_weight", ("streams", "hidden"), "bf16", "engram"),
    Entry("engram.k_weight", ("streams", "hidden"), "bf16", "engram"),
)
FIRST_DRAFT = (
    Entry("main_proj.weight", ("hidden", "targets*hidden"), "fp8", "draft heads"),
    Entry("main_norm.weight", ("hidden",), "bf16", "draft heads"),
)
LAST_DRAFT = (
    Entry("norm.weight", ("hidden",), "bf16", "draft heads"),
    Entry("markov_head.embed.weight", ("vocab", "markov_rank"), "bf16", "draft heads"),
    Entry("markov_head.head.weight", ("vocab", "markov_rank"), "bf16", "draft heads"),
    Entry("confidence_head.proj.weight", ("1", "hidden+markov_rank"), "bf16", "draft heads"),
)
IMAGE_TOKENS = (
    Entry("image_start", ("hidden",), "bf16", "vision"),
    Entry("image_end", ("hidden",), "bf16", "vision"),
    Entry("image_newline", ("hidden",), "bf16", "vision"),
)
VISION = (
    Entry("vision.patch_embed.proj.weight", ("width", "3*patch*patch"), "bf16", "vision"),
    Entry("vision.patch_embed.proj.bias", ("width",), "bf16", "vision"),
    Entry("vision.norm.weight", ("width",), "bf16_or_f32", "vision"),
    Entry("aligner.w1.weight", ("hidden", "width*cell*cell"), "bf16", "vision"),
    Entry("aligner.w1.bias", ("hidden",), "bf16", "vision"),
    Entry("aligner.w2.weight", ("hidden", "hidden"), "bf16", "vision"),
    Entry("aligner.w2.bias", ("hidden",), "bf16", "vision"),
)
VISION_BLOCK = (
    Entry("norm1.weight", ("width",), "bf16_or_f32", "vision"),
    Entry("norm2.weight", ("width",), "bf16_or_f32", "vision"),
    Entry("attn.wqkv.weight", ("3*width", "width"), "bf16", "vision"),
    Entry("attn.wqkv.bias", ("3*width",), "bf16", "vision"),
    Entry("attn.wo.weight", ("width", "width"), "bf16", "vision"),
    Entry("attn.wo.bias", ("width",), "bf16", "vision"),
    Entry("mlp.w1.weight", ("2*vision_inner", "width"), "bf16", "vision"),
    Entry("mlp.w2.weight", ("width", "vision_inner"), "bf16", "vision"),
)
