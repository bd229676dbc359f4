"""How kernels of the sampler cut a row of the vocabulary into blocks. It depends on the vocabulary alone."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deepinfer_cuda.interpreter import is_interpreting
from deepinfer_cuda.row_tiles import power_of_two

_CHOICES = Path(__file__).parent / "tuning" / "sampling.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyBlocks:
    """One row, cut.

    Attributes:
        vocab_size: Columns of the row.
        block: Columns of one block, a power of two.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline of a program that reads the row from end to end; 0 for others.
    """

    vocab_size: int
    block: int
    num_warps: int
    num_stages: int = 0

    @property
    def count(self) -> int:
        """Blocks of the row."""
        return -(-self.vocab_size // self.block)

    @property
    def padded_count(self) -> int:
        """Blocks of the row, as a power of two."""
        return power_of_two(self.count)

    @property
    def settings(self) -> dict[str, Any]:
        """Compile-time parameters that all these kernels have."""
        stages = {"STAGES": self.num_stages} if self.num_stages else {}
        return {"VOCAB": self.vocab_size, "BLOCK": self.block, "num_warps": self.num_warps, **stages}


def float32_scan(vocab_size: int) -> VocabularyBlocks:
    """For a program that reads a whole row in float32."""
    return _blocks("float32_scan", vocab_size)


def float64_scan(vocab_size: int) -> VocabularyBlocks:
    """For a program that reads a whole row and takes float64 exponentials."""
    return _blocks("float64_scan", vocab_size)


def filtered_scan(vocab_size: int) -> VocabularyBlocks:
    """For a program that also filters tokens."""
    return _blocks("filtered_scan", vocab_size)


def temperature_scan(vocab_size: int) -> VocabularyBlocks:
    """For programs that have a few blocks of a row each and take float64 exponentials."""
    return _few_blocks("temperature_scan", vocab_size)


def race_scan(vocab_size: int) -> VocabularyBlocks:
    """For programs that have a few blocks of a row each and hash its tokens by pairs."""
    return _few_blocks("race_scan", vocab_size)


def elementwise(vocab_size: int) -> VocabularyBlocks:
    """For a program that has one block of a row."""
    return _blocks("elementwise", vocab_size)


def _few_blocks(kind: str, vocab_size: int) -> VocabularyBlocks:
    """The same in the interpreter, so that rows have several parts there, too."""
    choice = _choices()[kind]
    block = min(choice["elements"], max(power_of_two(vocab_size), 2))
    return VocabularyBlocks(
        vocab_size=vocab_size, block=block, num_warps=choice["num_warps"], num_stages=choice["num_stages"]
    )


def _blocks(kind: str, vocab_size: int) -> VocabularyBlocks:
    choice = _choices()[kind] | (_choices()["interpreter"] if is_interpreting() else {})
    return VocabularyBlocks(
        vocab_size=vocab_size,
        block=min(choice["elements"], power_of_two(vocab_size)),
        num_warps=choice["num_warps"],
        num_stages=choice.get("num_stages", 0),
    )


@cache
def _choices() -> dict[str, Any]:
    return tomllib.loads(_CHOICES.read_text(encoding="utf-8"))
