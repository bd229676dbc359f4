"""``deepinfer check``: everything that is wrong with a checkpoint, from its config and headers alone."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.weights.check import CheckReport


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "check",
        description="Check config, index and file headers of a checkpoint; no weight is read. Of a hub id that was not "
        "downloaded before, only these are fetched. The exit code is 0 when nothing is wrong and 1 when something is; "
        "every problem is listed.",
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or the word tiny")
    parser.add_argument("--strict", action="store_true", help="count tensors that nothing needs as a problem")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to FILE")


def run(args: argparse.Namespace) -> int:
    """Check one checkpoint and print what was found."""
    from deepinfer_core.config.settings import resolve
    from deepinfer_core.weights.check import check_checkpoint

    settings = resolve({"model": args.model}, args.environment)
    with TemporaryDirectory(prefix="deepinfer-check-") as scratch:
        folder = _folder(args.model, settings.config.download_dir, Path(scratch))
        report = check_checkpoint(folder, strict=args.strict)
        is_remote = folder == Path(scratch)
    print("\n".join(_lines(report, f"{args.model} (headers from the hub)" if is_remote else str(folder))))
    if args.json:
        _write_json(args.json, {**report.as_json(), **({"folder": args.model} if is_remote else {})})
    return 1 if report.problems else 0


def _folder(model: str, download_dir: str, scratch: Path) -> Path:
    """Where to look: a folder, a download of before, or else headers that are fetched into ``scratch``."""
    from deepinfer_core.weights.locate import SHIPPED_MODELS, cached_snapshot, fetch_headers, locate

    folder = Path(model).expanduser()
    if model not in SHIPPED_MODELS and folder.is_dir():
        return folder

    def find(hub_id: str) -> str:
        cached = cached_snapshot(hub_id, download_dir)
        return str(cached) if cached is not None else fetch_headers(hub_id, scratch)

    return locate(model, download=find)


def _lines(report: CheckReport, where: str) -> Iterator[str]:
    yield f"checkpoint {where}"
    if report.architecture is not None:
        yield from _describe(report.architecture)
    shards = len(set(report.index.shards.values()))
    expected = f" of {report.num_expected} expected" if report.num_expected else ""
    yield f"tensors: {len(report.index.tensors)}{expected} in {shards} shards, {_size(report.index.total_bytes)}"
    yield from _table("part", report.bytes_by_part)
    yield from _table("dtype", report.bytes_by_dtype)
    yield from (f"note: {note}" for note in report.notes)
    if not report.problems:
        yield "no problems"
        return
    yield f"{len(report.problems)} problem{'s' if len(report.problems) > 1 else ''}:"
    yield from (f"  {number}. {problem}" for number, problem in enumerate(report.problems, 1))


def _describe(architecture: ModelArchitecture) -> Iterator[str]:
    """The model in a few lines."""
    attention, experts = architecture.attention, architecture.experts
    ratios = Counter(architecture.compress_ratios)
    kinds = ", ".join(f"{ratios[ratio]} of ratio {ratio}" for ratio in sorted(ratios))
    yield f"layers: {architecture.num_layers} ({kinds})"
    yield f"width: hidden {architecture.hidden_size}, vocabulary {architecture.vocab_size}"
    yield f"attention: {attention.num_heads} heads of {attention.head_dim}, window {attention.sliding_window}"
    yield f"experts: {experts.num_experts} of width {experts.inner_size}, {experts.experts_per_token} per token"
    if (engram := architecture.engram) is not None:
        yield f"engram: layers {', '.join(map(str, engram.layer_ids))}"
    if (draft := architecture.draft) is not None:
        yield f"draft: {draft.num_layers} layers, blocks of {draft.block_size}"


def _table(title: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """One line for each name with its bytes."""
    width = max(map(len, sizes), default=0)
    for name, num_bytes in sizes.items():
        yield f"  {title} {name:<{width}}  {_size(num_bytes):>10}"


def _size(num_bytes: int) -> str:
    """Bytes for people, in powers of 1024."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _write_json(file: Path, report: Mapping[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}", source="--json") from error
