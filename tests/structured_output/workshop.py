"""The tiny model's tokens, and a model of random logits that walks through grammars."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import deepinfer_core
from deepinfer_core.structured_output.compiler import CompiledGrammar, GrammarCompiler, GrammarVocabulary
from deepinfer_core.structured_output.mask_rows import num_mask_words
from deepinfer_core.structured_output.matcher import GrammarMatcher
from deepinfer_core.structured_outputs_params import StructuredOutputsParams

TOKENIZER = Path(deepinfer_core.__file__).parent / "models/tiny/tokenizer.json"
VOCAB_SIZE = 1280
EOS = 1
NUM_WORDS = num_mask_words(VOCAB_SIZE)
CLOSERS = (b'"', b"}]", b",:", b"./-@")
"""Bytes that lead towards the end of a text, best first."""


def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(
        read_tokenizer=lambda: TOKENIZER.read_text(encoding="utf-8"), vocab_size=VOCAB_SIZE, eos_token_id=EOS
    )


@functools.cache
def compiler() -> GrammarCompiler:
    """One for all tests that only need a grammar."""
    return GrammarCompiler(vocabulary(), time_limit_s=120.0)


@functools.cache
def native_tokenizer() -> Any:
    return vocabulary().load()


def compiled(**form: Any) -> CompiledGrammar:
    return compiler().compile(StructuredOutputsParams(**form)).result()


def matcher(**form: Any) -> GrammarMatcher:
    return compiler().compile(StructuredOutputsParams(**form)).matcher()


@functools.cache
def token_bytes() -> tuple[bytes, ...]:
    """The bytes of every token; none for special ones and for ids without a token."""
    tokenizer = native_tokenizer()
    return tuple(
        b"" if tokenizer.is_special_token(token) else bytes(tokenizer.decode_bytes([token]))
        for token in range(VOCAB_SIZE)
    )


def tokens_of(text: str | bytes) -> list[int]:
    return list(native_tokenizer().tokenize_bytes(text.encode() if isinstance(text, str) else text))


def accepts(grammar: CompiledGrammar, text: str | bytes) -> bool:
    """Whether a whole output may be this text, in the tokenizer's own tokens."""
    found = grammar.matcher()
    return all(found.accept(token) for token in [*tokens_of(text), EOS])


def allowed(found: GrammarMatcher) -> set[int]:
    """Tokens that the mask allows."""
    row = np.zeros(NUM_WORDS, np.int32)
    found.fill_mask(row)
    return set(tokens_in(row).tolist())


def tokens_in(row: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB_SIZE])


@dataclass(frozen=True, slots=True)
class Walk:
    """What a model of random logits generated."""

    tokens: Sequence[int]
    data: bytes
    is_finished: bool


def walk(found: GrammarMatcher, rng: np.random.Generator, *, free: int = 60, limit: int = 600) -> Walk:
    """Draw tokens at temperature 1 from random logits under the mask.

    After ``free`` tokens the logits of the end token and of tokens that close what is open are raised, as a model that
    comes to an end would; nothing but the mask ever forbids a token.
    """
    row = np.zeros(NUM_WORDS, np.int32)
    tokens: list[int] = []
    while len(tokens) < limit:
        found.fill_mask(row)
        choices = tokens_in(row)
        if not len(choices):
            break
        logits = rng.normal(size=len(choices)) * 2.0
        if len(tokens) >= free:
            logits += _closing()[choices]
        token = int(choices[np.argmax(logits + rng.gumbel(size=len(choices)))])
        assert found.accept(token), "the mask allowed a token that is not accepted"
        if token == EOS:
            return Walk(tokens, b"".join(token_bytes()[token] for token in tokens), True)
        tokens.append(token)
    return Walk(tokens, b"".join(token_bytes()[token] for token in tokens), False)


@functools.cache
def _closing() -> np.ndarray[Any, Any]:
    """What is added to the logit of each token towards the end."""
    bonus = np.array([10.0 * (len(data) == 1) for data in token_bytes()])
    for rank, kind in reversed(list(enumerate(CLOSERS))):
        bonus[[token for token, data in enumerate(token_bytes()) if data and set(data) <= set(kind)]] = 400 - 100 * rank
    bonus[EOS] = 500
    return bonus
