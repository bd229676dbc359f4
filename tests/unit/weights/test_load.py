"""Stored tensors end up in the right fields, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core.errors import CheckpointError, ConfigError
from deepinfer_core.tensor import QuantTensor
from deepinfer_core.weights.index import read_index
from deepinfer_core.weights.load import LoadedModel, load_model
from deepinfer_core.weights.reader import TensorReader


@pytest.fixture
def loaded(mini: Path) -> LoadedModel:
    return load_model(mini)


@pytest.fixture
def stored(mini: Path) -> TensorReader:
    return TensorReader(read_index(mini))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def test_shipped_model_loads(tiny: Path) -> None:
    model = load_model(tiny)

    assert len(model.parameters.layers) == 8
    assert model.parameters.draft is not None
    assert len(model.parameters.draft.layers) == 3
    assert [layer.attention.indexer is not None for layer in model.parameters.layers] == [
        layer in (1, 3, 4, 6) for layer in range(8)
    ]
    assert [layer.engram is not None for layer in model.parameters.layers] == [layer in (1, 3) for layer in range(8)]


def test_fp8_matrix_keeps_values_and_block_scales(loaded: LoadedModel, stored: TensorReader) -> None:
    query = loaded.parameters.layers[3].attention.query_b

    assert isinstance(query, QuantTensor)
    assert (query.format, query.data.dtype, query.scale.dtype) == ("fp8_block32", torch.float8_e4m3fn, torch.uint8)
    assert (query.data.shape, query.scale.shape) == ((256, 64), (8, 2))
    assert torch.equal(as_bytes(query.data), as_bytes(stored.tensor("layers.3.attn.wq_b.weight")))
    assert torch.equal(query.scale, as_bytes(stored.tensor("layers.3.attn.wq_b.scale")))


def test_experts_are_stacked_with_gate_rows_before_up_rows(loaded: LoadedModel, stored: TensorReader) -> None:
    experts = loaded.parameters.layers[2].experts

    assert isinstance(experts.gate_up, QuantTensor)
    assert isinstance(experts.down, QuantTensor)
    assert (experts.gate_up.shape, experts.down.shape) == ((16, 256, 128), (16, 128, 128))
    for name, rows in (("w1", slice(0, 128)), ("w3", slice(128, 256))):
        weight = stored.tensor(f"layers.2.ffn.experts.11.{name}.weight")
        scale = stored.tensor(f"layers.2.ffn.experts.11.{name}.scale")
        assert torch.equal(experts.gate_up.data[11, rows], as_bytes(weight))
        assert torch.equal(experts.gate_up.scale[11, rows], as_bytes(scale))
    assert torch.equal(experts.down.data[15], as_bytes(stored.tensor("layers.2.ffn.experts.15.w2.weight")))


def test_shared_expert_is_joined_with_gate_rows_first(loaded: LoadedModel, stored: TensorReader) -> None:
    joined = loaded.parameters.layers[6].experts.shared_gate_up

    assert isinstance(joined, QuantTensor)
    assert (joined.format, joined.data.dtype, joined.data.shape) == ("fp8_block32", torch.float8_e4m3fn, (256, 128))
    assert torch.equal(as_bytes(joined.data[128:]), as_bytes(stored.tensor("layers.6.ffn.shared_experts.w3.weight")))
    assert torch.equal(joined.scale[:4], as_bytes(stored.tensor("layers.6.ffn.shared_experts.w1.scale")))


def test_engram_table_keeps_one_scale_for_32_channels_of_a_row(loaded: LoadedModel) -> None:
    engram = loaded.parameters.layers[2].engram

    assert engram is not None
    assert (engram.table.format, engram.table.shape, engram.table.scale.shape) == ("mxfp8", (2148, 128), (2148, 4))
    assert engram.table.scale.dtype == torch.uint8


def test_draft_tensors_come_from_their_blocks(loaded: LoadedModel, stored: TensorReader) -> None:
    draft = loaded.parameters.draft

    assert draft is not None
    assert torch.equal(draft.feature_norm, stored.tensor("mtp.0.main_norm.weight"))
    assert torch.equal(draft.norm, stored.tensor("mtp.1.norm.weight"))
    assert torch.equal(draft.markov_head, stored.tensor("mtp.1.markov_head.head.weight"))
    assert draft.confidence.shape == (1, 160)
    assert draft.layers[1].experts.gate_up.shape == (8, 256, 128)
    assert torch.equal(draft.layers[1].attention.sink, stored.tensor("mtp.1.attn.attn_sink"))


def test_gate_exists_on_sources_of_ratio_2_only(loaded: LoadedModel) -> None:
    compressors = [layer.attention.compressor for layer in loaded.parameters.layers]

    assert [c is not None for c in compressors] == [False, False, True, False, True, False, False]
    assert compressors[2] is not None
    assert compressors[2].gate is not None
    assert compressors[4] is not None
    assert compressors[4].gate is None


def test_float32_compressor_weight_is_rounded_to_bf16(checkpoint: Any, floats: Any) -> None:
    checkpoint.change("layers.4.attn.compressor.wkv.weight", lambda tensor: floats(tensor.shape, 1.0 + 2**-9))

    compressor = load_model(checkpoint.folder).parameters.layers[4].attention.compressor

    assert compressor is not None
    assert compressor.value.dtype == torch.bfloat16
    assert torch.equal(compressor.value, torch.ones(64, 128, dtype=torch.bfloat16))


def test_unshifted_mixing_loads_head_mixes(checkpoint: Any, floats: Any) -> None:
    for prefix in ("", "mtp.1."):
        for name, shape in (("hc_head_fn", (4, 512)), ("hc_head_base", (4,)), ("hc_head_scale", (1,))):
            checkpoint.add(prefix + name, floats(shape, 0.25))
    with checkpoint.config() as config:
        config["text_config"]["hc_shifted"] = False

    parameters = load_model(checkpoint.folder).parameters

    assert parameters.head_mix is not None
    assert parameters.head_mix.function.shape == (4, 512)
    assert parameters.draft is not None
    assert parameters.draft.head_mix is not None


def test_wrong_checkpoint_is_refused_with_every_problem(checkpoint: Any) -> None:
    checkpoint.remove("norm.weight")
    checkpoint.remove("head.weight")

    with pytest.raises(CheckpointError) as refused:
        load_model(checkpoint.folder)

    assert len(refused.value.problems) == 2
    assert str(checkpoint.folder) in str(refused.value)


def test_unknown_load_format_is_refused(mini: Path) -> None:
    with pytest.raises(ConfigError, match="it must be one of auto, dummy"):
        load_model(mini, load_format="gguf")
