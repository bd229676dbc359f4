"""Table rows of every token agree with the independent implementation, exactly, for any chunking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

from deepinfer_core.config.architecture import EngramArchitecture
from deepinfer_core.engine.compressed_vocabulary import CompressedVocabulary, check_compressed_size, compress_vocabulary
from deepinfer_core.model.engram_tables import EngramTables, engram_tables
from deepinfer_core.ops.engram.hash_rows import hash_rows
from deepinfer_core.ops.engram.ngram_context import ngram_context

ROOT = Path(__file__).parents[2]
CHECKPOINTS = {"tiny": ROOT / "deepinfer_core/models/tiny", "mini_b": ROOT / "tests/golden/mini_b/checkpoint"}
FILES = sorted(p.relative_to(ROOT / "tests/golden").as_posix() for p in (ROOT / "tests/golden").glob("*/*.safetensors"))


def architecture_of(model: str) -> EngramArchitecture:
    """Read from the keys of the file itself, so that this test does not depend on our config reader."""
    config = json.loads((CHECKPOINTS[model] / "config.json").read_text())["text_config"]
    return EngramArchitecture(
        layer_ids=tuple(config["engram_layer_ids"]),
        max_ngram=config["engram_max_ngram_size"],
        heads_per_ngram=config["engram_n_heads"],
        head_dim=config["engram_head_dim"],
        prime_start=config["engram_vocab_size"],
        pad_token_id=config["engram_pad_token_id"],
        compressed_vocab_size=config["engram_compressed_vocab_size"],
    )


def vocabulary_of(model: str) -> CompressedVocabulary:
    return compress_vocabulary(tokenizers.Tokenizer.from_file(str(CHECKPOINTS[model] / "tokenizer.json")))


def chunks(length: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and end of consecutive chunks whose sizes go round and round."""
    first = 0
    for size in cycle(sizes):
        if first >= length:
            return
        yield first, min(first + size, length)
        first += size


def rows_of_chunk(compressed: list[int], first: int, end: int, pad_id: int, tables: EngramTables) -> Tensor:
    """Rows ``[tokens, layers, columns]`` of the tokens ``first .. end - 1`` with the history they follow."""
    back = len(tables.multipliers[0]) - 1
    history = [compressed[p] if p >= 0 else -1 for p in range(first - 1, first - 1 - back, -1)]
    ids = torch.tensor(compressed[first:end], dtype=torch.int32)
    positions = torch.arange(first, end, dtype=torch.int32)
    context = ngram_context(
        ids,
        positions,
        torch.zeros_like(ids),
        torch.tensor([history], dtype=torch.int32),
        max_ngram=back + 1,
        pad_id=pad_id,
    )
    constants = zip(tables.multipliers, tables.primes, tables.offsets, strict=True)
    return torch.stack(
        [hash_rows(context, ids, *(torch.tensor(c, dtype=torch.int64) for c in layer)) for layer in constants], dim=1
    )


@pytest.mark.parametrize("sizes", [(10**6,), (1, 1, 2, 3, 40)], ids=["whole", "chunked"])
@pytest.mark.parametrize("file", FILES)
def test_rows_equal_those_of_the_independent_implementation(file: str, sizes: tuple[int, ...]) -> None:
    model = file.split("/", maxsplit=1)[0]
    golden = load_file(ROOT / "tests/golden" / file)
    architecture, vocabulary = architecture_of(model), vocabulary_of(model)
    tables = engram_tables(architecture)
    compressed = vocabulary.compress(golden["input/ids"].tolist())
    is_image = golden.get("input/vision_token_types", torch.full((len(compressed),), -1)).flatten() != -1
    compressed = [-1 if image else number for number, image in zip(compressed, is_image.tolist(), strict=True)]
    pad_id = vocabulary.map[architecture.pad_token_id]

    rows = torch.cat([rows_of_chunk(compressed, *chunk, pad_id, tables) for chunk in chunks(len(compressed), sizes)])

    expected = golden["f32/engram_ids"].clone()
    expected[is_image] = -1
    assert torch.equal(rows, expected)


@pytest.mark.parametrize("model", sorted(CHECKPOINTS))
def test_vocabulary_folds_to_the_size_in_the_config(model: str) -> None:
    vocabulary = vocabulary_of(model)

    check_compressed_size(vocabulary, architecture_of(model).compressed_vocab_size, model)

    assert len(set(vocabulary.map)) == vocabulary.size < len(vocabulary.map)


def test_every_golden_file_was_found() -> None:
    assert len(FILES) >= 17
    assert {f.split("/")[0] for f in FILES} == set(CHECKPOINTS)
