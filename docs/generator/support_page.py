"""The support matrix: what each backend of the project claims, and on what hardware that was run."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepinfer_core.backend.registry import load, open_info
from deepinfer_core.backend.support import Support, support_matrix
from deepinfer_core.errors import InternalError
from deepinfer_core.ops import catalogue
from generator.markdown import code, page, table

BACKENDS = ("cpu", "null", "cuda", "ascend")
"""The backends of this repository; others publish a matrix of their own (``deepinfer backends NAME --json``)."""
RUNS_FILE = Path(__file__).parent.parent / "hardware_runs.toml"

_SKELETON = "skeleton, no op is claimed"

_TEXT = """\
# Support matrix

What each backend's table claims, before any model is bound to it. The report of a loaded model
(`LLM.binding_report`, `--log-level info`) says what really runs: an implementation is used where its limits hold.

- **native**: the backend has an implementation.
- **decomposed**: the op is a composite, and at least one of its steps is native.
- **reference**: run by the op's definition in plain torch, on the backend's own device: right, not fast.
- **-**: the package is a skeleton without device code; it runs nothing yet.

`deepinfer backends NAME` prints the same for any installed backend."""

_RUNS = """\
## What was run on hardware

An entry stands here only if the conformance kit was run there. Source: `docs/hardware_runs.toml`."""


def support_pages() -> dict[str, str]:
    """Path below ``docs/`` -> text."""
    tables = {name: support_matrix(load(open_info(name)).table, catalogue()) for name in BACKENDS}
    runs = _read_runs(tables)
    return {
        "support-matrix.md": page(
            _TEXT,
            _counts(tables),
            _RUNS,
            table(("backend", "ops", "hardware", "how"), [_run_row(run) for run in runs]),
            "\n".join(_never_run(tables, runs)),
            *(_native(name, rows, runs) for name, rows in tables.items()),
            "## Op by op",
            _matrix(tables),
        )
    }


def _counts(tables: Mapping[str, Sequence[Support]]) -> str:
    outcomes = ("native", "decomposed", "reference")
    rows: list[list[str]] = []
    for name, supports in tables.items():
        counts = Counter(_outcomes(supports))
        rows.append([name, *(str(counts[outcome]) for outcome in outcomes), _state(supports)])
    return table(("backend", *outcomes, "state"), rows)


def _outcomes(supports: Sequence[Support]) -> list[str]:
    """Outcome of each op; a dash where the package has no device that could run a reference."""
    is_skeleton = _state(supports) == _SKELETON
    return ["-" if is_skeleton else row.outcome for row in supports]


def _state(supports: Sequence[Support]) -> str:
    """How much the table claims."""
    if all(row.outcome == "native" or row.optional for row in supports):
        return "complete"
    return "partial" if any(row.outcome == "native" for row in supports) else _SKELETON


def _read_runs(tables: Mapping[str, Sequence[Support]]) -> list[dict[str, Any]]:
    """Entries of the runs file; each must name ops that its backend claims."""
    runs: list[dict[str, Any]] = tomllib.loads(RUNS_FILE.read_text(encoding="utf-8"))["run"]
    for run in runs:
        native = {row.op for row in tables[run["backend"]] if row.outcome == "native"}
        unknown = set(run["ops"]) - native - {"*"}
        if unknown:
            raise InternalError(f"{RUNS_FILE.name}: {run['backend']} does not claim {sorted(unknown)}")
    return runs


def _run_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    ops = "all" if run["ops"] == ["*"] else ", ".join(map(code, run["ops"]))
    return run["backend"], ops, run["hardware"], run["how"]


def _never_run(tables: Mapping[str, Sequence[Support]], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    ran = {run["backend"] for run in runs}
    return [f"- Nothing of backend **{name}** was run on its hardware." for name in tables if name not in ran]


def _native(name: str, supports: Sequence[Support], runs: Sequence[Mapping[str, Any]]) -> str:
    """The native rows of one backend with limits and notes."""
    rows = [
        (f"`{row.op}`", "<br>".join(row.implementations), "yes" if row.row_invariant else "no", _where(name, row, runs))
        for row in supports
        if row.outcome == "native"
    ]
    header = ("op", "implementations in the order of trying: note, limits", "row-invariant", "run on")
    return f"## Native ops of {name}\n\n" + (table(header, rows) or "None.")


def _where(name: str, row: Support, runs: Sequence[Mapping[str, Any]]) -> str:
    places = [
        run["hardware"] for run in runs if run["backend"] == name and (row.op in run["ops"] or run["ops"] == ["*"])
    ]
    return ", ".join(places) or "**never**"


def _matrix(tables: Mapping[str, Sequence[Support]]) -> str:
    columns = [_outcomes(supports) for supports in tables.values()]
    rows = [
        (f"[{op.name}](ops/{op.family}.md#{op.name.replace('.', '')})", *outcomes)
        for op, *outcomes in zip(catalogue(), *columns, strict=True)
    ]
    return table(("op", *tables), rows)
