"""``deepinfer trace``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

import deepinfer_core
from deepinfer_core.cli.main import main
from deepinfer_core.engine.trace_file import read_trace

MINI = Path(__file__).parents[2] / "golden" / "mini_b" / "checkpoint"
IDS = [0, 17, 25, 300, 5, 5, 8]
LAYERS = range(7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a prompt, and its trace as one step and in chunks."""
    made = tmp_path_factory.mktemp("traces")
    (made / "ids.json").write_text(json.dumps(IDS))
    for name, options in (("whole", []), ("chunks", ["--chunk", "3"])):
        out = str(made / f"{name}.safetensors")
        words = ["trace", str(MINI), "--token-ids", str(made / "ids.json"), "--out", out, "--accelerator", "cpu"]
        assert main([*words, "--numerics", "f32", *options]) == 0
    return made


def test_every_tensor_has_every_position(folder: Path) -> None:
    shapes = {name: tuple(t.shape) for name, t in read_trace(str(folder / "whole.safetensors")).tensors.items()}

    positions = {f"{kind}.{layer}" for kind in ("streams", "pre_mix", "attn_out", "ffn_out") for layer in LAYERS}
    assert {name for name, shape in shapes.items() if shape[0] == len(IDS)} >= positions | {
        "logits",
        "argmax",
        "features",
    }
    assert shapes["logits"] == (7, 768)
    assert shapes["streams.6"] == (7, 4, 128)
    assert shapes["router_ids.0"] == shapes["router_weights.0"] == (7, 3)
    assert shapes["compressed_kv.2"] == shapes["index_keys.2"] == (3, 64)
    assert shapes["topk.4"] == shapes["index_scores.4"] == (7, 7)
    assert shapes["engram_ids"] == (7, 2, 6)
    assert shapes["draft_tokens"] == (3, 4)
    assert shapes["greedy"] == (12,)


def test_the_file_says_what_made_it(folder: Path) -> None:
    with safe_open(folder / "chunks.safetensors", framework="pt") as opened:
        metadata = opened.metadata()

    assert {name: metadata[name] for name in ("deepinfer", "model", "numerics", "accelerator", "chunk")} == {
        "deepinfer": deepinfer_core.__version__,
        "model": str(MINI),
        "numerics": "f32",
        "accelerator": "cpu",
        "chunk": "3",
    }
    assert set(json.loads(metadata["binding"])) == {"native", "decomposed", "reference"}


def test_chunks_leave_the_same_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(folder / "whole.safetensors"), str(folder / "chunks.safetensors")]) == 0

    assert "equal: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[0, 1", "is not JSON"),
        ('{"ids": [0, 1]}', 'holds an object ({"ids": [0, 1]}); it must hold one list of ids'),
        ("[[0, 1]]", "item 0 of"),
        ("[0, 1.5]", "is a fraction (1.5)"),
        ('[0, "1"]', 'is a string ("1")'),
        ("[0, true]", "is a truth value (true)"),
    ],
)
def test_a_prompt_that_is_not_one_list_of_ids_is_refused(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.json").write_text(content)

    assert main(["trace", "no_such_model", "--token-ids", str(tmp_path / "ids.json"), "--out", "x"]) == 2

    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("[]", [], "the list of token ids is empty"),
        ("[0, 768, -1]", [], "ids [768, -1] are outside 0 .. 767"),
        ("[0, 1, 2, 3]", ["--max-model-len", "4"], "4 tokens, but this model was opened for 4 positions"),
        ("[0, 1]", ["--chunk", "-1"], "chunk is -1"),
        ("[0, 1]", ["--numerics", "f23"], "numerics"),
    ],
)
def test_what_the_model_cannot_run_is_refused(
    tmp_path: Path, content: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.json").write_text(content)
    words = ["trace", str(MINI), "--token-ids", str(tmp_path / "ids.json"), "--out", str(tmp_path / "x.safetensors")]

    assert main([*words, *options]) == 2

    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [("none/x.safetensors", "there is no folder"), (".", "is a folder; name a file in it")],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_model_is_looked_for(
    tmp_path: Path, out: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.json").write_text("[0, 1]")

    assert (
        main(["trace", "no_such_model", "--token-ids", str(tmp_path / "ids.json"), "--out", str(tmp_path / out)]) == 2
    )

    assert message in capsys.readouterr().err


def test_a_prompt_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "tiny", "--token-ids", str(tmp_path / "none.json"), "--out", "x"]) == 2

    assert "No such file or directory" in capsys.readouterr().err
