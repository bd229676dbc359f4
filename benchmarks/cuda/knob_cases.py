"""What ``knob_sweep.py`` measures: calls at the released sizes, and settings of the tables in ``tuning/``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import attention
import hyper_connection
import indexer
import rows
from measure import LAUNCH_FLOOR_US, Measurement, Work

from deepinfer_cuda import attention_cuts, indexing, row_tiles
from deepinfer_cuda.ops import hyper_connection as hyper_ops

_BYTES_PER_S, _FLOP_PER_S = 4.2e12, 785e12
_TABLES: dict[str, Callable[[], dict[str, Any]]] = {
    "indexer": indexing.choices,
    "hyper_connection": hyper_ops.choices,
    "rows": row_tiles.choices,
    "attention": attention_cuts.choices,
}
_MOST_US = 2000
_ALL = 1_000_000_000
"""More rows than any call has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Changes of one table.

    Attributes:
        name: In words.
        table: Name of the table.
        changes: Section (with dots between names) -> values in place of those that are there.
    """

    name: str
    table: str
    changes: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def applied(self) -> Generator[None]:
        """The table with the changes, then as it was."""
        table, before = _TABLES[self.table](), {}
        for path, value in self.changes.items():
            section, name = _place(table, path)
            before[path] = section[name]
            section[name] = {**section[name], **value} if isinstance(value, dict) else value
        try:
            yield
        finally:
            for path, value in before.items():
                section, name = _place(table, path)
                section[name] = value


@dataclass(frozen=True, slots=True)
class Case:
    """One call at one shape.

    Attributes:
        name: Of the op, and the shape.
        measurement: As the benchmark of the family has it.
        settings: The first one is the table's.
    """

    name: str
    measurement: Measurement
    settings: tuple[Setting, ...]

    @property
    def floor_us(self) -> float:
        """From bytes and FLOP at fixed ceilings."""
        seconds = max(self.measurement.bytes / _BYTES_PER_S, self.measurement.flop / _FLOP_PER_S)
        return seconds * 1e6 + LAUNCH_FLOOR_US

    def make(self) -> list[Work]:
        """Calls on inputs of their own, as many as take ``_MOST_US`` at best."""
        return self.measurement.make()[: max(int(_MOST_US / self.floor_us), 1)]


def _place(table: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *sections, name = path.split(".")
    for section in sections:
        table = table[section]
    return table, name


def _scores(kind: str, *cuts: tuple[int, int, int, bool, int]) -> tuple[Setting, ...]:
    """Cuts are tile, warps, stages, ahead, programs."""
    names = ("tile", "num_warps", "num_stages", "ahead", "programs")
    return (
        Setting("table", "indexer"),
        *(
            Setting(
                f"scores.{kind}: tile {c[0]} warps {c[1]} stages {c[2]} {'ahead ' if c[3] else ''}programs {c[4]}",
                "indexer",
                {f"scores.{kind}": dict(zip(names, c, strict=True))},
            )
            for c in cuts
        ),
    )


def _select(*cuts: tuple[int, int]) -> tuple[Setting, ...]:
    """Cuts are the widest row without maxima, and scores of a thread."""
    return tuple(
        Setting(
            f"select: widest {widest} scores_of_a_thread {each}",
            "indexer",
            {"select": {"widest": widest, "scores_of_a_thread": each}},
        )
        for widest, each in cuts
    )


def _maxima(*cuts: tuple[int, int]) -> tuple[Setting, ...]:
    return tuple(
        Setting(f"maxima: blocks {blocks} warps {warps}", "indexer", {"maxima": {"blocks": blocks, "num_warps": warps}})
        for blocks, warps in cuts
    )


def _projection(*cuts: tuple[int, int, int]) -> tuple[Setting, ...]:
    """Cuts are rows, warps, stages."""
    return tuple(
        Setting(
            f"projection: rows {r} warps {w} stages {s}",
            "hyper_connection",
            {"projection.tile": [{"max_rows": _ALL, "rows": r, "num_warps": w, "num_stages": s}]},
        )
        for r, w, s in cuts
    )


def _block(block: int, rows: int, num_warps: int, num_stages: int) -> Setting:
    """Another block of channels: sums in another order."""
    tile = {"max_rows": _ALL, "rows": rows, "num_warps": num_warps, "num_stages": num_stages}
    return Setting(
        f"projection: block {block} rows {rows} warps {num_warps} stages {num_stages}",
        "hyper_connection",
        {"projection": {"block": block, "tile": [tile]}},
    )


def _norm(**changes: int) -> Setting:
    words = " ".join(f"{name} {value}" for name, value in changes.items())
    return Setting(f"norm: {words}", "hyper_connection", {"norm": changes})


def _tiles(*cuts: tuple[int, int]) -> tuple[Setting, ...]:
    """Cuts are numbers of a program, and warps."""
    return (
        Setting("table", "rows"),
        *(
            Setting(
                f"elements {elements} warps {warps}",
                "rows",
                {"tile": [{"max_width": row_tiles.WIDEST, "elements": elements, "num_warps": warps}]},
            )
            for elements, warps in cuts
        ),
    )


def _attention(kind: str, *cuts: tuple[int, int, int]) -> tuple[Setting, ...]:
    """Cuts are keys, warps, stages."""
    names = ("keys", "num_warps", "num_stages")
    return (
        Setting("table", "attention"),
        *(
            Setting(
                f"{kind}: keys {c[0]} warps {c[1]} stages {c[2]}", "attention", {kind: dict(zip(names, c, strict=True))}
            )
            for c in cuts
        ),
    )


_ONE_ROW_CUTS = (
    (64, 4, 1, True, 792),
    (64, 4, 1, True, 1584),
    (64, 4, 1, True, 6336),
    (128, 4, 1, True, 1188),
    (128, 4, 1, True, 2376),
    (128, 4, 1, True, 4752),
    (64, 4, 3, False, 2112),
)
_SELECT_CUTS = ((16384, 64), (8192, 32), (8192, 16), (8192, 8))
_INDEXER = Setting("table", "indexer")
_HYPER = Setting("table", "hyper_connection")


def _measured(family: Callable[[], Iterable[Measurement]], *words: str) -> Measurement:
    """The measurement of a family whose group, name and shape, put together, are these words."""
    wanted = " ".join(words)
    return next(m for m in family() if f"{m.group} {m.name} {m.shape}" == wanted)


def _row_measurements() -> Iterator[Measurement]:
    """Those of rows that need no large table."""
    yield from rows.norms(8192)
    yield from rows.formats(8192)
    yield from rows.caches(8192)


def _cases() -> tuple[Case, ...]:
    decode = partial(_measured, indexer.measurements, "index_scores", "decode")
    top_k = partial(_measured, indexer.measurements, "select", "top_k")
    enter = partial(_measured, hyper_connection.measurements, "hyper_connection", "enter")
    row = partial(_measured, _row_measurements, "rows")
    attend = partial(_measured, attention.measurements, "sparse_attention")
    within = _measured(indexer.measurements, "select_within", "prefill", "rows=4096 context=131072")
    scores = _measured(indexer.measurements, "index_scores", "prefill", "rows=4096 context=131072 ratio=1")
    return (
        Case("scores 64x131072", decode("rows=64 context=131072 ratio=1"), _scores("one", *_ONE_ROW_CUTS)),
        Case(
            "enter 8192",
            enter("rows=8192"),
            (
                _HYPER,
                *_projection((64, 4, 3)),
                *(_block(64, *cut) for cut in ((64, 4, 2), (64, 4, 3), (128, 8, 2), (128, 8, 3), (32, 4, 3))),
                _block(128, 64, 4, 2),
            ),
        ),
        Case("enter 1", enter("rows=1"), (_HYPER, _block(64, 64, 4, 2), _block(64, 64, 4, 4), _norm(mix_rows=8))),
        Case(
            "top_k 64x131072",
            top_k("rows=64 width=131072"),
            (_INDEXER, *_select(*_SELECT_CUTS), *_maxima((512, 4), (2048, 4), (2048, 8))),
        ),
        Case("top_k 64x1048576", top_k("rows=64 width=1048576"), (_INDEXER, *_maxima((512, 4), (2048, 4), (2048, 8)))),
        Case("norm_quantize 8192", row("norm_quantize 5120", "rows=8192"), _tiles((4096, 4), (8192, 8), (8192, 4))),
        Case(
            "rotate_store window 8192",
            row("rotate_store window", "rows=8192"),
            _tiles((1024, 2), (1024, 4), (512, 1), (4096, 8)),
        ),
        Case("within 4096x131072", within, _scores("one", (64, 4, 1, True, 6336), (128, 4, 1, True, 2376))),
        Case("scores 1x131072", decode("rows=1 context=131072 ratio=1"), _scores("one", *_ONE_ROW_CUTS[:-1])),
        Case("top_k 1x131072", top_k("rows=1 width=131072"), (_INDEXER, *_select((8192, 16)), *_maxima((512, 4)))),
        Case("top_k 4096x131072", top_k("rows=4096 width=131072"), (_INDEXER, *_select(*_SELECT_CUTS))),
        Case("enter 256", enter("rows=256"), (_HYPER, _block(64, 64, 4, 2), _block(64, 64, 4, 4))),
        Case("extend_window 8192", row("extend_window", "rows=8192"), _tiles((1024, 2), (512, 1))),
        Case(
            "rotate_store main 8192",
            row("rotate_store main", "rows=8192"),
            _tiles((1024, 2), (512, 1), (256, 1)),
        ),
        Case(
            "quantize mxfp4 8192",
            row("quantize mxfp4", "rows=8192"),
            _tiles((4096, 2), (8192, 4), (8192, 8), (2048, 2)),
        ),
        Case(
            "attention prefill 4096",
            attend("prefill", f"4096 rows, context {attention.CONTEXT}"),
            _attention("prefill", (64, 4, 2)),
        ),
        Case(
            "attention decode 256",
            attend("decode", f"256 x 1 rows, context {attention.CONTEXT}"),
            _attention("decode", (64, 4, 2)),
        ),
        Case("scores prefill 4096x131072", scores, _scores("four", (64, 4, 1, True, 2112), (128, 8, 1, True, 1056))),
    )


CASES = _cases()
