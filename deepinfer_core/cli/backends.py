"""``deepinfer backends``: every backend found, why one cannot be used here, and its op table."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.backend.registry import BackendState, describe_backends, load, open_info
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import BackendLoadError, ConfigError

if TYPE_CHECKING:
    from deepinfer_core.backend.support import Support


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "backends",
        description="List the installed backends and say which can be used here. With NAME, load that backend and show "
        "its op table: an op is native, decomposed (a composite with native parts), or run by its reference.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the backend whose op table is shown")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write FILE: the same, with the op table of NAME or of every usable backend",
    )


def run(args: argparse.Namespace) -> int:
    """List all backends, or show one with its op table."""
    if args.name:
        tables = {args.name: _op_table(args.name)}
        states = [state for state in describe_backends() if state.name == args.name]
    else:
        states = describe_backends()
        states, tables = _load_usable(states) if args.json else (states, {})
    print(_listing(states))
    if args.name:
        print("", _op_listing(tables[args.name]), sep="\n")
    if args.json:
        _write_json(args.json, states, tables)
    return 0


def _op_table(name: str) -> tuple[Support, ...]:
    """Load a backend, usable here or not, and read its table."""
    backend = load(open_info(name))

    from deepinfer_core.backend.support import support_matrix
    from deepinfer_core.ops import catalogue

    return support_matrix(backend.table, catalogue())


def _load_usable(states: Sequence[BackendState]) -> tuple[list[BackendState], dict[str, tuple[Support, ...]]]:
    """Op tables of the usable backends; one that does not load after all is described as broken."""
    described: list[BackendState] = []
    tables: dict[str, tuple[Support, ...]] = {}
    for state in states:
        described.append(state)
        if state.state != "usable":
            continue
        try:
            tables[state.name] = _op_table(state.name)
        except BackendLoadError as error:
            described[-1] = replace(state, state="broken", reason=str(error))
    return described, tables


def _listing(states: Sequence[BackendState]) -> str:
    """One backend a line; further reasons stand below the first."""
    rows = [("backend", "version", "state"), *((state.name, state.version, state.state) for state in states)]
    reasons = ["reason", *(state.reason for state in states)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = " " * (sum(widths) + 2 * len(widths))
    lines: list[str] = []
    for row, reason in zip(rows, reasons, strict=True):
        cells = "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=True))
        lines.append(cells + reason.replace("; ", ";\n" + indent))
    return "\n".join(lines)


def _op_listing(table: Sequence[Support]) -> str:
    """One op a line: how it is run, and the notes and limits of its implementations."""
    counts = Counter(row.outcome for row in table)
    lines = [
        f"{len(table)} ops: "
        + ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("native", "decomposed", "reference"))
    ]
    width = max((len(row.op) for row in table), default=0)
    lines += [
        f"{row.op:<{width}}  {row.outcome:<10}  {' | '.join(row.implementations) or row.summary}" for row in table
    ]
    return "\n".join(lines)


def _write_json(file: Path, states: Sequence[BackendState], tables: Mapping[str, Sequence[Support]]) -> None:
    """Write states and op tables; ``ops`` is null for a backend that was not loaded."""
    backends: list[dict[str, Any]] = []
    for state in states:
        table = tables.get(state.name)
        backends.append({**asdict(state), "ops": None if table is None else [asdict(row) for row in table]})
    try:
        file.write_text(json.dumps({"backends": backends}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}", source="--json") from error
