"""Streamed text equals the text decoded at once, and never holds half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.engine.text_stream import TextStream
from deepinfer_core.engine.tokenizer import Tokenizer

TEXTS = [
    "\u010f",
    "n\u011bco \u017elu\u0165ou\u010dk\u00e9ho",
    "\U0001f600",
    "\U0001f469\u200d\U0001f4bb ok",
    "\u4f60\u597d",
    "a\U0001f1e8\U0001f1ff",
]
MODELS = ["tiny", "mini_b"]


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    stream = TextStream(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(stream.push(i) for i in ids), stream.finish()]


def tokens_of_bytes(tokenizer: Tokenizer) -> list[int]:
    """The token of each byte alone."""
    tokens = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [tokens[bytes([byte])] for byte in range(256)]


def bytes_as_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token for every byte."""
    tokens = tokens_of_bytes(tokenizer)
    return [tokens[byte] for byte in data]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_any_tokens_give_the_text_of_one_shot_decoding(
    tokenizers_by_model: dict[str, Tokenizer], model: str, skip_special_tokens: bool
) -> None:
    tokenizer = tokenizers_by_model[model]

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    def check(ids: list[int]) -> None:
        pieces = streamed(tokenizer, ids, skip_special_tokens=skip_special_tokens)

        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    check()


@pytest.mark.parametrize("model", MODELS)
def test_any_bytes_give_the_text_of_one_shot_decoding(tokenizers_by_model: dict[str, Tokenizer], model: str) -> None:
    tokenizer = tokenizers_by_model[model]
    tokens = tokens_of_bytes(tokenizer)

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(
        st.one_of(
            st.binary(max_size=24),
            st.text(max_size=8).map(str.encode),
            st.text(max_size=8).map(lambda t: t.encode()[:-1]),
        )
    )
    def check(data: bytes) -> None:
        ids = [tokens[byte] for byte in data]

        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_holds_a_replacement_character_when_the_text_is_whole(
    tokenizers_by_model: dict[str, Tokenizer], model: str, text: str
) -> None:
    tokenizer = tokenizers_by_model[model]

    for ids in (tokenizer.encode(text), bytes_as_tokens(tokenizer, text.encode())):
        pieces = streamed(tokenizer, ids)

        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)


def test_bytes_are_held_back_until_the_character_is_complete(tiny: Tokenizer) -> None:
    assert streamed(tiny, bytes_as_tokens(tiny, "a\U0001f600b".encode())) == ["a", "", "", "", "\U0001f600", "b", ""]


def test_bytes_that_cannot_complete_are_released_at_once(tiny: Tokenizer) -> None:
    assert streamed(tiny, bytes_as_tokens(tiny, b"\xf0\x9fa")) == ["", "", "\ufffda", ""]


def test_the_end_releases_what_was_held_back(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    for token_id in bytes_as_tokens(tiny, "\U0001f600".encode()[:3]):
        assert stream.push(token_id) == ""

    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_special_tokens_are_left_out_unless_asked_for(tiny: Tokenizer) -> None:
    ids = [tiny.bos_id, *tiny.encode("hi"), tiny.eos_id]

    assert "".join(streamed(tiny, ids)) == "hi"
    assert "".join(streamed(tiny, ids, skip_special_tokens=False)) == tiny.decode(ids, skip_special_tokens=False)


def test_a_special_token_does_not_complete_or_break_a_character(tiny: Tokenizer) -> None:
    first, second = bytes_as_tokens(tiny, "\u010f".encode())

    assert streamed(tiny, [first, tiny.eos_id, second]) == ["", "", "\u010f", ""]


class Counting:
    """A token source that notes every look-up."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.asked: list[int] = []

    def token_bytes(self, token_id: int) -> bytes:
        self.asked.append(token_id)
        return b"x"


def test_each_token_is_looked_up_once_however_long_the_sequence() -> None:
    source = Counting()
    stream = TextStream(source)

    for token_id in range(1000):
        stream.push(token_id)

    assert source.asked == list(range(1000))
