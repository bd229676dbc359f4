"""Random weights for any architecture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from deepinfer_core.config.checkpoint import parse_config
from deepinfer_core.errors import CheckpointError
from deepinfer_core.weights.check import read_config
from deepinfer_core.weights.dummy import DummyTensors
from deepinfer_core.weights.load import load_model
from deepinfer_core.weights.names import expected_tensors

DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}


@pytest.fixture
def dummy(mini: Path) -> DummyTensors:
    return DummyTensors(read_config(mini)[0])


def dequantized(dummy: DummyTensors, name: str) -> torch.Tensor:
    """An FP8 matrix in float32."""
    scale = dummy.tensor(f"{name}.scale").float()
    return dummy.tensor(f"{name}.weight").float() * scale.repeat_interleave(32, 0).repeat_interleave(32, 1)


def test_only_the_config_file_is_needed(mini: Path, tmp_path: Path) -> None:
    shutil.copy(mini / "config.json", tmp_path)

    model = load_model(tmp_path, load_format="dummy")

    assert len(model.parameters.layers) == 7
    assert "the weights are random (load_format dummy)" in model.notes


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the folder has no config\.json"):
        load_model(tmp_path, load_format="dummy")


def test_every_tensor_has_the_type_and_shape_of_the_format(mini: Path, dummy: DummyTensors) -> None:
    for expected in expected_tensors(read_config(mini)[0]):
        tensor = dummy.tensor(expected.name)

        assert (tuple(tensor.shape), tensor.dtype) == (expected.shape, DTYPES[expected.dtypes[0]]), expected.name
        assert torch.isfinite(tensor.float()).all(), expected.name


def test_a_tensor_depends_on_its_own_name_only(mini: Path, dummy: DummyTensors) -> None:
    again = DummyTensors(read_config(mini)[0])

    again.tensor("layers.0.attn_norm.weight")

    assert torch.equal(dummy.tensor("embed.weight"), again.tensor("embed.weight"))
    assert not torch.equal(dummy.tensor("embed.weight"), dummy.tensor("head.weight"))


def test_a_deeper_model_has_the_same_first_layers(mini: Path, released: dict[str, object]) -> None:
    deeper = parse_config(released).architecture
    assert deeper is not None
    shallow = parse_config({**released, "vision_config": {"num_hidden_layers": 0}}).architecture
    assert shallow is not None

    name = "layers.0.ffn.experts.3.w1.scale"

    assert torch.equal(
        DummyTensors(deeper).tensor(name).view(torch.uint8), DummyTensors(shallow).tensor(name).view(torch.uint8)
    )


@pytest.mark.parametrize("name", ["layers.0.attn.wq_a", "layers.3.attn.wo_b", "mtp.0.main_proj"])
def test_matrices_keep_the_size_of_what_passes_through(dummy: DummyTensors, name: str) -> None:
    matrix = dequantized(dummy, name)

    gain = (torch.randn(64, matrix.shape[1]) @ matrix.T).std().item()

    assert 0.5 < gain < 2.5
    assert matrix.abs().mean() > 0


def test_no_path_is_degenerate(dummy: DummyTensors) -> None:
    base = dummy.tensor("layers.0.hc_attn_base")
    norm = dummy.tensor("layers.0.attn_norm.weight").float()

    assert base.std() > 0.5
    assert (norm - 1).abs().max() < 0.6
    assert norm.std() > 0.05
    assert not torch.equal(dummy.tensor("layers.0.ffn.gate.bias"), dummy.tensor("layers.0.ffn.gate.bias_vl"))
    assert dummy.tensor("layers.0.hc_attn_fn").std() < 0.02
    assert (dummy.tensor("layers.0.hc_attn_scale") - 0.1).abs().max() < 0.05
    assert len(dummy.tensor("layers.0.ffn.experts.0.w1.scale").view(torch.uint8).unique()) == 3
