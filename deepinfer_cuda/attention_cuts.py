"""How sparse attention is cut into programs: measured choices, and what follows from them for a call."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_CHOICES = Path(__file__).parent / "tuning" / "attention.toml"
_MOST_HEADS = 64
"""Heads of one program: the rows of its matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCut:
    """Constants of one launch of an attention kernel.

    Attributes:
        heads: Heads of one program, a power of two.
        keys: Keys of one block.
        num_warps: Warps of a program.
        num_stages: Depth of the pipeline of loads.
    """

    heads: int
    keys: int
    num_warps: int
    num_stages: int

    @property
    def constants(self) -> dict[str, Any]:
        """Compile-time parameters of the kernels."""
        return {
            "HEADS": self.heads,
            "KEYS": self.keys,
            "STAGES": self.num_stages,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }

    def head_programs(self, num_heads: int) -> int:
        """Programs among which the heads of a row are divided."""
        return -(-num_heads // self.heads)

    def blocks(self, window: int, context: int) -> int:
        """Blocks of keys of one row; window and context do not share one."""
        return -(-window // self.keys) + -(-context // self.keys)


def attention_cut(kind: str, num_heads: int) -> AttentionCut:
    """The cut for ``decode`` or ``prefill``."""
    choice = choices()[kind]
    heads = max(min(1 << (num_heads - 1).bit_length(), _MOST_HEADS), 16)
    return AttentionCut(
        heads=heads, keys=choice["keys"], num_warps=choice["num_warps"], num_stages=choice["num_stages"]
    )


def part_blocks(num_programs: int, blocks: int) -> int:
    """Blocks of keys for one program when without parts there would be ``num_programs``.

    Args:
        num_programs: Rows times programs for the heads of a row.
        blocks: Blocks of keys of a row.
    """
    choice = choices()["decode"]
    for part in choice["part_blocks"]:
        if part < blocks and num_programs * -(-blocks // part) <= choice["programs_at_once"]:
            return part
    return blocks


def most_parts(num_heads: int) -> int:
    """Parts of all rows together, where rows have parts: all their programs run at once."""
    return int(choices()["decode"]["programs_at_once"]) // attention_cut("decode", num_heads).head_programs(num_heads)


@cache
def choices() -> dict[str, Any]:
    """The table ``tuning/attention.toml``."""
    return tomllib.loads(_CHOICES.read_text(encoding="utf-8"))
