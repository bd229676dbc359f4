"""The golden files, and what is known about the roundings behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.engine.trace_file import read_trace
from tests.golden_agreement.rounding import Nudge

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).parents[1] / "golden"
CHECKPOINTS = {"tiny": "tiny", "mini_b": str(FOLDER / "mini_b" / "checkpoint")}
"""Folder of golden files -> the model that they were made with."""


@dataclass(frozen=True)
class GoldenFile:
    """One prompt and what the independent implementation computed for it.

    Attributes:
        model: ``tiny`` or ``mini_b``.
        prompt: Name of the file.
        nudges: Near-ties that the golden run, in its float32 noise, rounded the other way than exact arithmetic does.
            ``find_nudges.py`` found them: with them every tensor agrees, without any one of them some tensor does not.
        drafts: Tolerance of the draft tensors.
    """

    model: str
    prompt: str
    nudges: tuple[Nudge, ...] = ()
    drafts: float = 1e-5

    @property
    def id(self) -> str:
        return f"{self.model}/{self.prompt}"

    def tensors(self, variant: str) -> Mapping[str, Tensor]:
        """Tensors of a variant by name."""
        return read_trace(f"{FOLDER / self.model / self.prompt}.safetensors::{variant}").tensors

    @property
    def token_ids(self) -> list[int]:
        return self.tensors("f32")["input/ids"].tolist()


FILES = (
    GoldenFile("mini_b", "random_1"),
    GoldenFile("mini_b", "random_7", (Nudge(("window", 5), row=2, group=0, sign=1),)),
    GoldenFile("mini_b", "random_33"),
    GoldenFile(
        "mini_b",
        "random_130",
        (Nudge(("window", 0), row=94, group=1, sign=1), Nudge(("window", 1), row=122, group=0, sign=-1)),
    ),
    GoldenFile("mini_b", "random_700", (Nudge(("window", 6), row=685, group=0, sign=-1),), drafts=2e-5),
    GoldenFile("mini_b", "random_1500"),
    GoldenFile("tiny", "random_1"),
    GoldenFile("tiny", "random_7"),
    GoldenFile("tiny", "add"),
    GoldenFile("tiny", "json"),
    GoldenFile(
        "tiny",
        "recall",  # one key of the draft's first layer, which is made again for each of the three drafts
        tuple(Nudge(("ring", call), row=8, group=3, sign=1) for call in (0, 6, 12)),
    ),
    GoldenFile("tiny", "recall_400", (Nudge(("window", 3), row=349, group=2, sign=1),)),
    GoldenFile("tiny", "recall_800"),
    GoldenFile(
        "tiny",
        "recall_1500",
        (Nudge(("index", 1), row=505, group=0, sign=-1), Nudge(("query", 1), row=4339, group=2, sign=1)),
    ),
    GoldenFile("tiny", "sort"),
    GoldenFile("tiny", "story"),
    GoldenFile(
        "tiny",
        "think",
        (Nudge(("window", 0), row=35, group=2, sign=-1), Nudge(("window", 7), row=22, group=0, sign=-1)),
    ),
)
TEXTS = tuple(file for file in FILES if file.model == "tiny" and not file.prompt.startswith("random"))
"""Prompts of the kind that the tiny model was trained on."""
