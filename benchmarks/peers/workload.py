"""What is timed, the same for everybody: which tokens, how many sequences, how many steps.

Only the standard library and ``tokenizers``, so that it runs in our environment and in that of a peer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "deepinfer_core" / "models" / "tiny"
REPEATS = 3
"""Timings of each figure; the fastest counts, because on a machine that others use too, noise only adds."""

_TEXTS = ROOT / "tests" / "data" / "eval_heldout.jsonl"
_APART = 61
"""Tokens between the beginnings of two sequences in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure.

    Every sequence gets its context and one greedy token first, untimed. Then ``num_tokens`` more of each are timed;
    where that is 0, the context and its one token are.

    Attributes:
        name: What the tables call it.
        num_sequences: Sequences that advance together.
        context_tokens: Tokens of each that are given.
        num_tokens: Greedy tokens of each that are timed.
        target_ratio: How many times the peer's rate is wanted; None where the project promises none.
    """

    name: str
    num_sequences: int
    context_tokens: int
    num_tokens: int
    target_ratio: float | None

    @property
    def num_timed_tokens(self) -> int:
        """Tokens that the seconds stand for, all sequences together."""
        return self.num_sequences * (self.num_tokens or self.context_tokens)


MEASUREMENTS = (
    Measurement(
        name="decode, 1 sequence after 32 tokens", num_sequences=1, context_tokens=32, num_tokens=24, target_ratio=5.0
    ),
    Measurement(
        name="decode, 1 sequence after 1,000 tokens",
        num_sequences=1,
        context_tokens=1000,
        num_tokens=4,
        target_ratio=50.0,
    ),
    Measurement(
        name="decode, 32 sequences after 32 tokens",
        num_sequences=32,
        context_tokens=32,
        num_tokens=8,
        target_ratio=None,
    ),
    Measurement(name="prefill, 1,500 tokens", num_sequences=1, context_tokens=1500, num_tokens=0, target_ratio=6.0),
)


def contexts(measurement: Measurement) -> list[list[int]]:
    """Token ids that the sequences are given: windows of one text of held-out documents."""
    lines = [json.loads(line) for line in _TEXTS.read_text(encoding="utf-8").splitlines()]
    text = "".join(line["prompt"] for line in lines if line["task"].startswith("recall"))
    ids = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    starts = range(0, measurement.num_sequences * _APART, _APART)
    return [ids[start : start + measurement.context_tokens] for start in starts]
