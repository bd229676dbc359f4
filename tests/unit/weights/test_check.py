"""Everything that can be wrong with a checkpoint is found from config and headers, all at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import CheckpointError, ConfigError
from deepinfer_core.weights.check import check_checkpoint
from deepinfer_core.weights.load import load_model

WEIGHT = "layers.0.attn.wq_b.weight"
SCALE = "layers.0.attn.wq_b.scale"
TABLE = "layers.1.engram.embed.weight"


def only_problem(folder: Path) -> str:
    (problem,) = check_checkpoint(folder).problems
    return problem


def test_shipped_checkpoints_are_clean(mini: Path, tiny: Path) -> None:
    reports = [check_checkpoint(mini), check_checkpoint(tiny)]

    assert [report.problems for report in reports] == [(), ()]
    assert [len(report.index.tensors) for report in reports] == [1104, 860]
    assert [report.num_expected for report in reports] == [1104, 860]


def test_vision_tensors_are_noted_in_one_line(tiny: Path) -> None:
    notes = check_checkpoint(tiny).notes

    assert "37 tensors of the vision part are known and not loaded" in notes


def test_bytes_are_summed_by_part_and_type(tiny: Path) -> None:
    report = check_checkpoint(tiny)

    assert sum(report.bytes_by_part.values()) == sum(report.bytes_by_dtype.values()) == 16_129_824
    assert report.bytes_by_part["routed experts"] == 8 * (8 * 8 + 3 * 4) // 8 * (3 * 128 * 128 + 3 * 128 * 8)


def test_shard_cut_by_one_byte_is_called_truncated_with_both_sizes(checkpoint: Any) -> None:
    shard = checkpoint.folder / checkpoint.shards[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])

    assert only_problem(checkpoint.folder) == (
        f"shard {shard.name} is truncated: expected {len(content)} bytes, found {len(content) - 1}; download it again"
    )


@pytest.mark.parametrize("size", [0, 5, 100])
def test_shard_cut_in_its_header_is_called_truncated(checkpoint: Any, size: int) -> None:
    shard = checkpoint.folder / checkpoint.shards[0]
    shard.write_bytes(shard.read_bytes()[:size])

    problem = only_problem(checkpoint.folder)

    assert "truncated" in problem
    assert f"found {size}" in problem


def test_file_of_another_kind_is_not_called_truncated(checkpoint: Any) -> None:
    (checkpoint.folder / checkpoint.shards[0]).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")

    assert "is not a safetensors file" in only_problem(checkpoint.folder)


def test_header_that_is_not_json_is_called_unreadable(checkpoint: Any) -> None:
    (checkpoint.folder / checkpoint.shards[0]).write_bytes((4).to_bytes(8, "little") + b"nope")

    assert "is not readable: its header is not JSON" in only_problem(checkpoint.folder)


def test_all_absent_shards_are_listed_in_one_problem(checkpoint: Any) -> None:
    names = checkpoint.shards
    for name in names:
        (checkpoint.folder / name).unlink()

    assert only_problem(checkpoint.folder) == f"2 of 2 shards are absent: {', '.join(names)}; download them"


def test_missing_tensor_is_named_with_the_nearest_and_what_was_searched(checkpoint: Any) -> None:
    shard = checkpoint.shard_of("layers.3.ffn_norm.weight")
    with checkpoint.tensors(shard) as tensors:
        tensors["layers.3.ffn_nrm.weight"] = tensors.pop("layers.3.ffn_norm.weight")
    with checkpoint.weight_map() as weight_map:
        weight_map["layers.3.ffn_nrm.weight"] = weight_map.pop("layers.3.ffn_norm.weight")

    assert only_problem(checkpoint.folder) == (
        "layers.3.ffn_norm.weight is missing: searched the index and the headers of 2 shards; "
        "did you mean 'layers.3.ffn_nrm.weight'?"
    )


def test_missing_scale_is_named_with_its_weight_and_the_shard_searched(checkpoint: Any) -> None:
    shard = checkpoint.shard_of(SCALE)
    with checkpoint.tensors(shard) as tensors:
        tensors["layers.0.attn.wq_b.weight_scale_inv"] = tensors.pop(SCALE)

    assert only_problem(checkpoint.folder) == (
        f"{SCALE}, the scale of {WEIGHT} (in {shard}), is missing: the index gives shard {shard}, whose header has no "
        "such tensor; did you mean 'layers.0.attn.wq_b.weight_scale_inv'?"
    )


def test_tensor_that_only_the_index_lacks_is_located(checkpoint: Any) -> None:
    with checkpoint.weight_map() as weight_map:
        shard = weight_map.pop("norm.weight")

    assert only_problem(checkpoint.folder) == (
        f"norm.weight is missing: shard {shard} holds it, but the index does not list it"
    )


def test_unwanted_tensor_is_listed_once_as_a_note(checkpoint: Any, floats: Any) -> None:
    checkpoint.add("layers.0.attn.wq_b.extra_scale", floats((1,), 1.0))

    report = check_checkpoint(checkpoint.folder)

    assert report.problems == ()
    assert [note for note in report.notes if "extra_scale" in note] == [
        "unknown tensors, not loaded (1): layers.0.attn.wq_b.extra_scale"
    ]


def test_unwanted_tensor_is_a_problem_when_checking_strictly(checkpoint: Any, floats: Any) -> None:
    checkpoint.add("layers.0.attn.wq_b.extra_scale", floats((1,), 1.0))

    report = check_checkpoint(checkpoint.folder, strict=True)

    assert report.problems == ("unknown tensors, not loaded (1): layers.0.attn.wq_b.extra_scale",)


@pytest.mark.parametrize("name", ["mtp.1.markov_head.head.weight", "mtp.0.main_norm.weight", "mtp.1.attn.wkv.weight"])
def test_half_a_draft_module_is_refused(checkpoint: Any, name: str) -> None:
    shard = checkpoint.shard_of(name)
    with checkpoint.tensors(shard) as tensors:
        del tensors[name]
    with checkpoint.weight_map() as weight_map:
        del weight_map[name]

    assert only_problem(checkpoint.folder).startswith(f"{name} is missing: searched the index")


def test_shared_copies_in_draft_layers_are_known_and_ignored(checkpoint: Any, floats: Any) -> None:
    checkpoint.add("mtp.0.embed.weight", floats((1,), 1.0))

    report = check_checkpoint(checkpoint.folder, strict=True)

    assert report.problems == ()
    assert "known tensors that are not needed (1): mtp.0.embed.weight" in report.notes


def test_misshapen_tensor_names_both_shapes(checkpoint: Any) -> None:
    checkpoint.change("layers.2.ffn.gate.weight", lambda tensor: tensor.with_rows(15))

    shard = checkpoint.shard_of("layers.2.ffn.gate.weight")
    assert only_problem(checkpoint.folder) == (
        f"layers.2.ffn.gate.weight in {shard} has shape [15, 128]; the config needs [16, 128]"
    )


def test_engram_table_one_row_short_is_refused(checkpoint: Any) -> None:
    checkpoint.change(TABLE, lambda tensor: tensor.with_rows(1915))

    problem = only_problem(checkpoint.folder)

    assert "has shape [1915, 128]; the config needs [1916, 128]" in problem
    assert "primes" in problem


def test_wrong_type_names_both(checkpoint: Any) -> None:
    checkpoint.change("norm.weight", lambda tensor: replace(tensor, dtype="F16"))

    assert "norm.weight in" in only_problem(checkpoint.folder)
    assert "is F16; it must be BF16" in only_problem(checkpoint.folder)


def test_scale_that_is_no_power_of_two_is_refused_and_never_rounded(checkpoint: Any, floats: Any) -> None:
    checkpoint.change(SCALE, lambda tensor: floats(tensor.shape, 1.5))

    problem = only_problem(checkpoint.folder)

    assert f"{SCALE} in" in problem
    assert "is F32; it must be F8_E8M0: scales are powers of two, and others cannot be rounded alone" in problem
    with pytest.raises(CheckpointError, match="F8_E8M0"):
        load_model(checkpoint.folder)


def test_block_size_of_the_config_against_the_tensors_names_both(checkpoint: Any) -> None:
    with checkpoint.config() as config:
        config["quantization_config"]["weight_block_size"] = [128, 128]

    problem = only_problem(checkpoint.folder)

    assert "weight_block_size is [128, 128]; only [32, 32] is supported" in problem
    assert "the stored scales of layers.0.attn.wq_b.weight have blocks of [32, 32]" in problem
    with pytest.raises(ConfigError, match="128, 128"):
        load_model(checkpoint.folder)


def test_scales_of_larger_blocks_than_the_format_are_refused(checkpoint: Any) -> None:
    checkpoint.change(SCALE, lambda tensor: replace(tensor, shape=(2, 1), data=tensor.data[:2]))

    assert "has shape [2, 1]; the config needs [8, 2] (one scale for every group" in only_problem(checkpoint.folder)


def test_stored_hyper_connection_norm_is_refused(checkpoint: Any, floats: Any) -> None:
    checkpoint.add("layers.0.hc_attn_norm.weight", floats((512,), 1.0))

    assert "layers.0.hc_attn_norm.weight must not exist" in only_problem(checkpoint.folder)


def test_float32_compressor_weights_are_accepted_with_a_note(checkpoint: Any, floats: Any) -> None:
    name = "layers.2.attn.compressor.wkv.weight"
    checkpoint.change(name, lambda tensor: floats(tensor.shape, 0.5))

    report = check_checkpoint(checkpoint.folder)

    assert report.problems == ()
    assert f"F32 tensors, rounded to BF16 when loaded (1): {name}" in report.notes


def test_missing_vision_tensor_says_how_to_do_without(checkpoint: Any) -> None:
    checkpoint.remove("vision.norm.weight")

    assert "vision.norm.weight is missing" in only_problem(checkpoint.folder)
    assert "vision_config.num_hidden_layers 0" in only_problem(checkpoint.folder)


def test_text_only_config_ignores_stored_vision_tensors(checkpoint: Any) -> None:
    with checkpoint.config() as config:
        config["vision_config"] = {"num_hidden_layers": 0}

    report = check_checkpoint(checkpoint.folder, strict=True)

    assert report.problems == ()
    assert load_model(checkpoint.folder).architecture.vision is None


def test_problems_of_config_files_and_tensors_are_reported_together(checkpoint: Any) -> None:
    checkpoint.remove("norm.weight")
    checkpoint.change(TABLE, lambda tensor: tensor.with_rows(1))
    with checkpoint.config() as config:
        config["quantization_config"]["scale_fmt"] = "float"
    last = checkpoint.folder / checkpoint.shards[1]
    last.write_bytes(last.read_bytes() + b"x")

    problems = "\n".join(check_checkpoint(checkpoint.folder).problems)

    for part in ("norm.weight is missing", "has shape [1, 128]", "scale_fmt is 'float'", "is too long"):
        assert part in problems


def test_folder_without_config_is_told_so_along_with_the_rest(checkpoint: Any) -> None:
    (checkpoint.folder / "config.json").unlink()
    (checkpoint.folder / checkpoint.shards[0]).unlink()

    problems = check_checkpoint(checkpoint.folder).problems

    assert problems[0] == "the folder has no config.json"
    assert "1 of 2 shards are absent" in problems[1]


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_config_that_is_no_json_object_is_refused(checkpoint: Any, content: str) -> None:
    (checkpoint.folder / "config.json").write_text(content)

    with pytest.raises(ConfigError, match=r"config\.json is not"):
        load_model(checkpoint.folder)


def test_empty_weight_map_is_not_clean(checkpoint: Any) -> None:
    with checkpoint.weight_map() as weight_map:
        weight_map.clear()

    assert len(check_checkpoint(checkpoint.folder).problems) == 1104


def test_absent_tokenizer_is_noted(checkpoint: Any) -> None:
    (checkpoint.folder / "tokenizer.json").unlink()

    assert "tokenizer.json is absent: text cannot be encoded" in check_checkpoint(checkpoint.folder).notes


def test_report_has_a_json_form(tiny: Path) -> None:
    report = json.loads(json.dumps(check_checkpoint(tiny).as_json()))

    assert report["clean"] is True
    assert report["problems"] == []
    assert report["num_tensors"] == 860
    assert report["total_bytes"] == 16_129_824
