"""The tensors that an architecture needs."""

from __future__ import annotations

from typing import Any

from deepinfer_core.config.checkpoint import read_architecture
from deepinfer_core.weights.names import ExpectedTensor, expected_tensors, is_ignored


def by_name(config: dict[str, Any]) -> dict[str, ExpectedTensor]:
    return {tensor.name: tensor for tensor in expected_tensors(read_architecture(config)[0])}


def test_released_model_has_the_documented_number_of_tensors(released: dict[str, Any]) -> None:
    tensors = list(expected_tensors(read_architecture(released)[0]))

    assert len(tensors) == len({tensor.name for tensor in tensors}) == 96_085


def test_released_shapes_are_the_documented_ones(released: dict[str, Any]) -> None:
    tensors = by_name(released)

    documented = {
        "layers.0.hc_attn_fn": (24, 20480),
        "layers.39.attn.wq_a.scale": (40, 160),
        "layers.5.attn.wq_b.weight": (32768, 1280),
        "layers.5.attn.wo_a.weight": (8192, 4096),
        "layers.20.attn.indexer.wq_b.weight": (4096, 1280),
        "layers.20.attn.indexer.wk.weight": (128, 512),
        "layers.0.ffn.shared_experts.w1.scale": (72, 160),
        "layers.0.ffn.experts.383.w1.weight": (2304, 2560),
        "layers.0.ffn.experts.383.w2.weight": (5120, 1152),
        "layers.0.ffn.experts.383.w2.scale": (5120, 72),
        "layers.1.engram.embed.weight": (384006168, 256),
        "layers.14.engram.embed.scale": (384016682, 8),
        "layers.14.engram.wkv.weight": (25600, 6144),
        "mtp.0.main_proj.weight": (5120, 15360),
        "mtp.2.confidence_head.proj.weight": (1, 5376),
        "vision.patch_embed.proj.weight": (1024, 588),
        "vision.blocks.31.mlp.w1.weight": (5632, 1024),
        "aligner.w1.weight": (5120, 9216),
    }
    assert {name: tensors[name].shape for name in documented} == documented


def test_only_owners_have_compressor_gate_and_index_keys(released: dict[str, Any]) -> None:
    tensors = by_name(released)

    assert "layers.14.attn.compressor.wgate.weight" in tensors
    assert "layers.20.attn.compressor.wkv.weight" in tensors
    assert "layers.20.attn.compressor.wgate.weight" not in tensors
    assert "layers.24.attn.indexer.wq_b.weight" in tensors
    assert "layers.24.attn.indexer.wk.weight" not in tensors
    assert "layers.21.attn.indexer.wq_b.weight" not in tensors


def test_unshifted_mixing_adds_head_mixes(released: dict[str, Any]) -> None:
    shifted = by_name(released)
    released["text_config"]["hc_shifted"] = False

    added = {name: tensor.shape for name, tensor in by_name(released).items() if name not in shifted}

    assert added == {
        "hc_head_fn": (4, 20480),
        "hc_head_base": (4,),
        "hc_head_scale": (1,),
        "mtp.2.hc_head_fn": (4, 20480),
        "mtp.2.hc_head_base": (4,),
        "mtp.2.hc_head_scale": (1,),
    }


def test_text_only_config_needs_no_image_tensors(released: dict[str, Any]) -> None:
    released["vision_config"]["num_hidden_layers"] = 0

    names = by_name(released)

    assert len(names) == 96_085 - 263 - 3 - 43
    assert not any("bias_vl" in name or "image" in name for name in names)


def test_known_leftovers_are_told_from_unknown_names() -> None:
    known = ["mtp.0.embed.weight", "mtp.2.head.weight", "vision.norm.weight", "layers.3.ffn.gate.bias_vl", "image_end"]
    unknown = ["layers.0.embed.weight", "mtp.0.attn.other", "visionary"]

    assert all(is_ignored(name) for name in known)
    assert not any(is_ignored(name) for name in unknown)
