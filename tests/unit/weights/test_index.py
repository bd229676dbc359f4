"""Finding tensors: index or single file, optional prefix, unusual headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core.weights.check import check_checkpoint
from deepinfer_core.weights.index import read_index
from deepinfer_core.weights.load import load_model
from deepinfer_core.weights.reader import TensorReader

SCALE = "layers.0.attn.wq_b.scale"


@pytest.mark.parametrize(("index", "headers"), [(True, False), (False, True), (True, True)])
def test_prefix_may_stand_in_the_index_and_in_the_headers(
    checkpoint: Any, mini: Path, index: bool, headers: bool
) -> None:
    plain = load_model(mini)
    checkpoint.prefix(index=index, headers=headers)

    prefixed = load_model(checkpoint.folder)

    assert prefixed.notes == plain.notes
    assert torch.equal(prefixed.parameters.head, plain.parameters.head)
    assert torch.equal(prefixed.parameters.layers[4].experts.down.scale, plain.parameters.layers[4].experts.down.scale)


def test_single_file_needs_no_index(checkpoint: Any, mini: Path) -> None:
    plain = load_model(mini)
    checkpoint.merge()

    single = load_model(checkpoint.folder)

    assert torch.equal(single.parameters.embedding, plain.parameters.embedding)


def test_missing_tensor_of_a_single_file_names_the_file(checkpoint: Any) -> None:
    checkpoint.merge()
    with checkpoint.tensors("model.safetensors") as tensors:
        del tensors["norm.weight"]

    assert check_checkpoint(checkpoint.folder).problems == ("norm.weight is missing: searched model.safetensors",)


def test_shards_without_an_index_are_refused_in_words(checkpoint: Any) -> None:
    (checkpoint.folder / "model.safetensors.index.json").unlink()

    (problem,) = check_checkpoint(checkpoint.folder).problems

    assert "neither model.safetensors.index.json nor model.safetensors" in problem
    assert all(shard in problem for shard in checkpoint.shards)


def test_index_entries_that_differ_only_by_the_prefix_are_refused(checkpoint: Any) -> None:
    with checkpoint.weight_map() as weight_map:
        weight_map["model.norm.weight"] = weight_map["norm.weight"]

    (problem,) = check_checkpoint(checkpoint.folder).problems

    assert problem.endswith("lists norm.weight and model.norm.weight, which differ only by the prefix 'model.'")


def test_header_entries_that_differ_only_by_the_prefix_are_refused(checkpoint: Any) -> None:
    shard = checkpoint.shard_of("norm.weight")
    with checkpoint.tensors(shard) as tensors:
        tensors["model.norm.weight"] = tensors["norm.weight"]

    assert check_checkpoint(checkpoint.folder).problems == (
        f"shard {shard} holds norm.weight and model.norm.weight, which differ only by the prefix 'model.'",
    )


def test_index_that_leads_out_of_the_folder_is_refused(checkpoint: Any) -> None:
    with checkpoint.weight_map() as weight_map:
        weight_map["norm.weight"] = "../elsewhere.safetensors"

    assert "it must be a plain file name" in check_checkpoint(checkpoint.folder).problems[0]


@pytest.mark.parametrize("content", ["{", "[]", '{"metadata": {}}'])
def test_unusable_index_is_refused_in_words(checkpoint: Any, content: str) -> None:
    (checkpoint.folder / "model.safetensors.index.json").write_text(content)

    (problem,) = check_checkpoint(checkpoint.folder).problems

    assert problem.startswith("model.safetensors.index.json ")


def test_header_without_metadata_and_with_exponent_only_scales_loads(checkpoint: Any) -> None:
    with checkpoint.tensors(checkpoint.shard_of(SCALE)) as tensors:
        stored = tensors[SCALE]

    loaded = load_model(checkpoint.folder)

    assert stored.dtype == "F8_E8M0"
    assert bytes(loaded.parameters.layers[0].attention.query_b.scale.flatten().tolist()) == stored.data


def edit_header(checkpoint: Any, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of the first shard and leave its data as it is."""
    path = checkpoint.folder / checkpoint.shards[0]
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])


def test_tensor_whose_bytes_do_not_fit_its_shape_is_refused(checkpoint: Any) -> None:
    edit_header(checkpoint, lambda header: header["embed.weight"].update(shape=[768, 129]))

    problems = check_checkpoint(checkpoint.folder).problems

    assert any("embed.weight in" in problem and "needs 198144" in problem for problem in problems)


def test_unknown_element_type_is_refused(checkpoint: Any) -> None:
    edit_header(checkpoint, lambda header: header["embed.weight"].update(dtype="F7"))

    assert any("unknown dtype 'F7'" in problem for problem in check_checkpoint(checkpoint.folder).problems)


def test_header_entry_without_offsets_is_refused(checkpoint: Any) -> None:
    edit_header(checkpoint, lambda header: header["embed.weight"].pop("data_offsets"))

    problems = check_checkpoint(checkpoint.folder).problems

    assert any("the header entry of embed.weight needs" in problem for problem in problems)


def test_gap_between_tensors_is_refused(checkpoint: Any) -> None:
    edit_header(checkpoint, lambda header: header.pop("embed.weight"))

    assert any("is not readable" in problem for problem in check_checkpoint(checkpoint.folder).problems)


def test_rows_of_a_table_are_read_alone(checkpoint: Any) -> None:
    reader = TensorReader(read_index(checkpoint.folder))

    rows = reader.rows("layers.1.engram.embed.weight", 7, 9)

    whole = reader.tensor("layers.1.engram.embed.weight")
    assert torch.equal(rows.view(torch.uint8), whole[7:9].view(torch.uint8))
