"""Find the near-ties that a golden file rounded the other way (``golden_files.py``), when such files are made anew.

    python -m tests.golden_agreement.find_nudges tiny/think

Float32 runs have noise of the same kind as the golden run, so the near-ties on which ours differs from the exact run
are tried first, all at once; what is not needed is then dropped. If that does not explain the file, single near-ties
are tried, those of late layers first, until the first tensor that disagrees agrees; and so on for the next one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.engine.trace_rows import model_order
from tests.golden_agreement.agreement import compare_with, disagreeing
from tests.golden_agreement.golden_files import FILES, GoldenFile
from tests.golden_agreement.rounding import Nudge, Roundings
from tests.golden_agreement.workshop import Run, Workshop

GROUPS = {"main": FORMATS["fp4_e4m3"].group}
"""Channels that share a scale, where it is not 32."""


class Search:
    """Runs of one file with nudges."""

    def __init__(self, workshop: Workshop, file: GoldenFile) -> None:
        self._workshop, self._file = workshop, file
        self.exact = self.run(())
        self.float32 = workshop.rounded(file, "f32", Roundings())

    def run(self, nudges: Sequence[Nudge]) -> Run:
        return self._workshop.rounded(self._file, "f64", Roundings(nudges=tuple(nudges)))

    def wrong(self, nudges: Sequence[Nudge]) -> list[str]:
        """Tensors that disagree."""
        return [c.name for c in disagreeing(compare_with(self._file, self.run(nudges).tensors))]

    def decided_by_float32(self) -> Iterator[Nudge]:
        """Near-ties on which the float32 run differs from the exact one."""
        for nudge in self.exact.roundings.near_ties:
            width = GROUPS.get(nudge.site[0], 32)
            place = (nudge.row, slice(nudge.group * width, (nudge.group + 1) * width))
            mine, theirs = (run.roundings.recorded.get(nudge.site) for run in (self.exact, self.float32))
            if mine is not None and theirs is not None and bool((mine[place] != theirs[place]).any()):
                yield nudge

    def pruned(self, nudges: Sequence[Nudge]) -> list[Nudge]:
        """Only those without which more tensors disagree; halves are dropped before single ones."""
        kept, allowed = list(nudges), len(self.wrong(nudges))
        size = max(len(kept) // 2, 1)
        while kept:
            at = 0
            while at < len(kept):
                rest = kept[:at] + kept[at + size :]
                if len(self.wrong(rest)) <= allowed:
                    kept = rest
                else:
                    at += size
            if size == 1:
                break
            size = max(size // 2, 1)
        return kept

    def one_by_one(self) -> list[Nudge]:
        """Nudges that explain one tensor after the other, as far as they are found."""
        found: list[Nudge] = []
        candidates = sorted(self.exact.roundings.near_ties, key=lambda nudge: -nudge.site[1])
        wrong = self.wrong(found)
        while wrong:
            for nudge in candidates:
                after = self.wrong([*found, nudge])
                if not after or model_order(after[0]) > model_order(wrong[0]):
                    found, wrong = [*found, nudge], after
                    break
            else:
                return found
        return found


def main() -> None:
    """Print what was found for each file that is named."""
    workshop = Workshop()
    for file in (file for file in FILES if file.id in sys.argv[1:]):
        search = Search(workshop, file)
        nudges = search.pruned(list(search.decided_by_float32()))
        if search.wrong(nudges):
            nudges = search.pruned(search.one_by_one())
        print(file.id, *nudges, f"still disagreeing: {search.wrong(nudges)}", sep="\n    ")


if __name__ == "__main__":
    main()
