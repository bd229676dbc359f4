"""Axis letters of op contracts: one meaning everywhere."""

from __future__ import annotations

AXES = {
    "T": "tokens (rows) of the step",
    "B": "sequences of the step",
    "R": "rows of a cache or of the step that one call lists",
    "M": "blocks or state slots of a cache",
    "J": "blocks in one row of the block table",
    "A": "context rows gathered for one prefill",
    "Q": "window rows gathered for one prefill",
    "Z": "score columns (compressed entries) of the step",
    "H": "hidden size",
    "I": "input width of a linear map",
    "O": "output width of a linear map",
    "G": "groups of a grouped linear map",
    "N": "query heads",
    "D": "head size, width of a cached row",
    "X": "index heads",
    "W": "window slots of one query",
    "S": "selected compressed entries of one query",
    "Y": "candidate blocks of one query",
    "P": "slots per block",
    "E": "experts",
    "K": "experts per token",
    "F": "inner width of an expert",
    "C": "residual streams",
    "V": "vocabulary",
    "L": "look-back of an n-gram context",
    "U": "hash columns of one engram layer",
}
"""Every letter that a contract may use, with its meaning."""

DYNAMIC = frozenset("TBRMJAQZ")
"""Axes whose size changes from step to step; limits on them are ranges."""
