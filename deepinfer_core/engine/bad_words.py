"""Words that must not be generated, as sequences of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.tokenizer import Tokenizer


def bad_word_tokens(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences of words, each without a space before it and, where that makes other tokens, with one.

    As in vLLM, a word is forbidden in these spellings only: the tokens of a word inside a longer one may differ.

    Raises:
        RequestError: The tokenizer drops all of a word.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        plain, spaced = (_tokens(prefix + word.lstrip(), tokenizer) for prefix in ("", " "))
        if not plain:
            raise RequestError(f"SamplingParams: the tokenizer has no tokens for {word!r} of bad_words; leave it out")
        sequences[plain] = None
        if spaced[-len(plain) :] != plain:
            sequences[spaced] = None
    return tuple(sequences)


def _tokens(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.backing.encode(text, add_special_tokens=False).ids)
