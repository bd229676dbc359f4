"""Time of the masks of a batch of requests with grammars, and of compiling them.

    python benchmarks/grammar_masks.py --requests 64 --vocab-size 129280

The requests are at different places of texts that a model would write, so a step holds cheap and dear states side by
side. Without ``--tokenizer`` the vocabulary is made up: bytes, then words, numbers and punctuation as byte-level
vocabularies hold them, the same ones each time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer_core.structured_output.compiler import CompiledGrammar, GrammarCompiler, GrammarVocabulary
from deepinfer_core.structured_output.mask_rows import num_mask_words
from deepinfer_core.structured_output.masks import MaskFiller
from deepinfer_core.structured_output.matcher import GrammarMatcher
from deepinfer_core.structured_outputs_params import StructuredOutputsParams

GOAL_MS = 2.0
BYTE_SPELLING = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""Bytes that byte-level vocabularies spell as the character of the same number."""

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        "kind": {"enum": ["a", "b", "c"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/t",
    "$defs": {
        "t": {
            "type": "object",
            "properties": {"v": {"type": "number"}, "c": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
            "required": ["v", "c"],
            "additionalProperties": False,
        }
    },
}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "schema": (
        {"json": PERSON},
        '{"name": "Maria Gonzales", "age": 42, "tags": ["red", "deep blue", "very good"], "kind": "b"}',
    ),
    "recursive": ({"json": TREE}, '{"v": 1.5, "c": [{"v": -2, "c": []}, {"v": 3e5, "c": [{"v": 0.25, "c": []}]}]}'),
    "object": (
        {"json_object": True},
        '{"city": "Berlin", "people": [{"n": 3.5, "ok": true}, {"note": "hello world"}]}',
    ),
    "regex": ({"regex": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2} [a-z ]+"}, "2026-11-30T12:30 a walk by the sea"),
    "choice": ({"choice": ["positive", "negative", "neutral", "mixed feelings"]}, "mixed feelings"),
    "gbnf": (
        {"grammar": 'root ::= expr\nexpr ::= term (" + " term)*\nterm ::= [0-9] | "(" expr ")"'},
        "1 + (2 + 3) + (4 + (5 + 6))",
    ),
}
MIXED = ("schema", "recursive", "object", "regex", "choice")
"""What the goal is for; a grammar of single characters is listed apart."""


@dataclass(slots=True)
class Timing:
    """Milliseconds of the masks of one batch; ``processor`` is the median over all threads together."""

    median: float
    percentile_90: float
    worst: float
    processor: float


def different_schemas(count: int) -> dict[str, tuple[dict[str, Any], str]]:
    """As many forms as requests, no two of which share a compiled grammar."""
    forms: dict[str, tuple[dict[str, Any], str]] = {}
    text = FORMS["schema"][1]
    for number in range(count):
        name = f"note_{number}"
        properties = {**PERSON["properties"], name: {"type": "string", "maxLength": 40}}
        schema = {**PERSON, "properties": properties, "required": list(properties)}
        forms[f"schema {number}"] = ({"json": schema}, f'{text[:-1]}, "{name}": "seen twice"}}')
    return forms


def made_up_tokenizer(vocab_size: int) -> str:
    """Text of a ``tokenizer.json`` with a byte-level vocabulary of this size; id 1 ends a text."""
    spelling = {byte: chr(byte) for byte in BYTE_SPELLING}
    others = [byte for byte in range(256) if byte not in spelling]
    spelling.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    rng = random.Random(0)
    tokens = ["<bos>", "<eos>", "<pad>", *(spelling[byte] for byte in range(256))]
    known = set(tokens)
    while len(tokens) < vocab_size:
        token = "".join(spelling[byte] for byte in _made_up_token(rng).encode())
        if token not in known:
            known.add(token)
            tokens.append(token)
    specials = [
        {"id": index, "content": tokens[index], "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for index in range(3)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": []}
    parts = {"added_tokens": specials, "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    return json.dumps({"version": "1.0", **parts})


def _made_up_token(rng: random.Random) -> str:
    share = rng.random()
    if share < 0.75:
        word = "".join(rng.choices("etaoinshrdlucmfwypvbgkjqxz", range(27, 1, -1), k=rng.choice(range(2, 11))))
        return rng.choice(("", " ")) + (word.title() if rng.random() < 0.2 else word)
    if share < 0.8:
        return str(rng.randrange(10**5))
    if share < 0.92:
        return "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(rng.choice((1, 2, 2, 3))))
    return "".join(rng.choices('{}[]":,\\/ \n\t_-=+()<>;.', k=rng.choice((2, 3, 4))))


def time_masks(
    grammars: Sequence[tuple[CompiledGrammar, Sequence[int]]], num_requests: int, filler: MaskFiller, words: int
) -> Timing:
    """Steps of a batch whose requests are spread over their texts; the first round warms the lexers up."""
    requests = [grammars[index % len(grammars)] for index in range(num_requests)]
    matchers: list[GrammarMatcher | None] = [grammar.matcher() for grammar, _ in requests]
    places = [index * 7 % len(tokens) for index, (_, tokens) in enumerate(requests)]
    for matcher, (_, tokens), place in zip(matchers, requests, places, strict=True):
        if matcher is not None:
            matcher.replay(tokens[:place])
    masks = np.zeros((num_requests, words), np.int32)
    times: list[float] = []
    processor: list[float] = []
    for _ in range(150):
        begin, begin_processor = time.perf_counter(), time.process_time()
        filler.fill(matchers, masks)
        times.append((time.perf_counter() - begin) * 1e3)
        processor.append((time.process_time() - begin_processor) * 1e3)
        for index, (grammar, tokens) in enumerate(requests):
            matcher = matchers[index]
            if places[index] == len(tokens) or matcher is None:
                matchers[index], places[index] = grammar.matcher(), 0
            else:
                matcher.replay([tokens[places[index]]])
                places[index] += 1
    times = sorted(times[50:])
    return Timing(statistics.median(times), times[int(0.9 * len(times))], times[-1], statistics.median(processor[50:]))


def main(arguments: Sequence[str]) -> int:
    """Print the tables; 1 if the median of the mixed batch misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=129280)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; made up if left out")
    parser.add_argument("--eos", type=int, default=1)
    parser.add_argument("--threads", type=int, help="left out: what the library thinks right")
    asked = parser.parse_args(arguments)
    read: Callable[[], str] = (
        asked.tokenizer.read_text if asked.tokenizer else lambda: made_up_tokenizer(asked.vocab_size)
    )
    vocabulary = GrammarVocabulary(read_tokenizer=read, vocab_size=asked.vocab_size, eos_token_id=asked.eos)
    compiler = GrammarCompiler(vocabulary, time_limit_s=600.0)
    compiler.compile(StructuredOutputsParams(regex="a")).result()
    tokenizer = vocabulary.load()
    print(
        f"{asked.requests} requests, {asked.vocab_size} tokens, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print("form        compile ms   median ms   90 % ms   worst ms   all threads ms")
    filler, words = MaskFiller(asked.threads), num_mask_words(asked.vocab_size)
    compiled: dict[str, tuple[CompiledGrammar, Sequence[int]]] = {}
    different = different_schemas(asked.requests)
    batches = {**{name: (name,) for name in FORMS}, "different": tuple(different), "mixed": MIXED}
    for name, parts in batches.items():
        begin = time.perf_counter()
        for part in parts:
            if part not in compiled:
                form, text = different[part] if part in different else FORMS[part]
                grammar = compiler.compile(StructuredOutputsParams(**form)).result()
                compiled[part] = (grammar, tokenizer.tokenize_str(text))
        compile_ms = (time.perf_counter() - begin) * 1e3
        timing = time_masks([compiled[part] for part in parts], asked.requests, filler, words)
        figures = (timing.median, timing.percentile_90, timing.worst, timing.processor)
        print(f"{name:10s} {compile_ms:11.1f}" + "".join(f" {figure:10.2f}" for figure in figures))
    is_met = timing.median < GOAL_MS
    print(f"mixed batch: median {timing.median:.2f} ms, goal {GOAL_MS:g} ms: {'met' if is_met else 'MISSED'}")
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
