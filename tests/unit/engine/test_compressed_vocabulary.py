"""Folding of the vocabulary, with toy tokenizers."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models

from deepinfer_core.engine.compressed_vocabulary import check_compressed_size, compress_vocabulary
from deepinfer_core.errors import CheckpointError


def toy(*tokens: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of these raw spellings (a blank is spelled U+0120)."""
    tokenizer = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def folded(*tokens: str) -> tuple[int, ...]:
    return compress_vocabulary(toy(*tokens)).map


def test_case_accents_and_outer_blanks_fold_together() -> None:
    assert folded("the", "\u0120the", "\u0120The", "x", "\u00c3\u00a9", "e") == (0, 0, 0, 1, 2, 2)


def test_full_width_letters_fold_to_plain_ones() -> None:
    assert folded("\u00ef\u00bc\u00a1", "a") == (0, 0)


def test_runs_of_blank_space_fold_to_one_space() -> None:
    assert folded("\u0120", "\u0120\u0120", "\u010a", "\u0109\u010d") == (0, 0, 0, 0)


def test_parts_of_characters_keep_their_own_ids() -> None:
    assert folded("\u00c3", "\u00c4", "\u00a9") == (0, 1, 2)


def test_text_that_folds_to_nothing_keeps_its_own_spelling() -> None:
    assert folded("\u00cc\u0123", "\u00cc\u0122", "a") == (0, 1, 2)


def test_added_tokens_count() -> None:
    tokenizer = toy("a", "b")
    tokenizer.add_tokens(["<mark>", "A"])

    vocabulary = compress_vocabulary(tokenizer)

    assert vocabulary.map == (0, 1, 2, 0)
    assert vocabulary.size == 3


def test_ids_outside_the_tokenizer_have_no_compressed_id() -> None:
    vocabulary = compress_vocabulary(toy("a", "A"))

    assert vocabulary.compress([1, 2, -7, 0]) == [0, -1, -1, 0]
    assert vocabulary.table(4) == (0, 0, -1, -1)


def test_the_map_follows_the_tokenizer_that_serves() -> None:
    """Two revisions with equal vocabulary and equal folded size, two tokens swapped (A5)."""
    trained, served = compress_vocabulary(toy("a", "b", "B")), compress_vocabulary(toy("b", "a", "B"))

    assert trained.size == served.size
    assert trained.map == (0, 1, 1)
    assert served.map == (0, 1, 0)


def test_another_folded_size_than_the_config_is_an_error_naming_both() -> None:
    vocabulary = compress_vocabulary(toy("a", "b"))

    with pytest.raises(
        CheckpointError, match=r"folder: the tokenizer folds to 2 compressed ids but engram_compressed_vocab_size is 3"
    ):
        check_compressed_size(vocabulary, 3, "folder")
