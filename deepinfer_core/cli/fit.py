"""``deepinfer fit``: what a model needs and on how many devices it fits, from its config alone."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from deepinfer_core.cli.output_file import check_outputs, write_json
from deepinfer_core.cli.parsing import add_output_options, positive, whole_numbers
from deepinfer_core.cli.sizes import size
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.cli.table import columns
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.engine.accelerator_memory import AcceleratorMemory
    from deepinfer_core.engine.memory_plan import Fit, MemoryPlan, TablePlace
    from deepinfer_core.engine.model_config import ModelConfig

DEFAULT_CONTEXTS = (8192, 32768, 131072, 1048576)
DEFAULT_SHARE = 0.9
"""Of a device's memory; the rest is for activations, communication buffers and captured graphs, as in DeepInfer."""

_ASSUMPTIONS = """\
assumed: weights in their stored formats; expert parallelism over all devices (each holds the same number of experts,
rounded up), everything else on every device; every device serves its own sequences and holds their caches."""

_EPILOG = """\
examples:
  deepinfer fit released --devices 8
  deepinfer fit released --devices 4 --memory-gib 140 --context 4096,65536 --json plan.json
  deepinfer fit tiny --devices 1 --accelerator cpu

The word released, or the hub id of the released model, uses a config that ships with the project; of another hub id
only config.json is fetched. Without --accelerator and --memory-gib every accelerator that is known is shown. Exit code
1 means that the model does not fit, wherever its engram tables are.
"""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One accelerator with the tables in one place."""

    accelerator: AcceleratorMemory
    fit: Fit


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "fit",
        description="Weights by group, how they split over devices, caches by context length, and how many sequences "
        "fit; read from the model's config alone, so before anything large is downloaded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, tiny, or released")
    parser.add_argument("--devices", type=positive, required=True, metavar="N", help="number of devices")
    parser.add_argument(
        "--accelerator", metavar="A", help="what the devices are: a known name, or a backend that can be used here"
    )
    parser.add_argument("--memory-gib", type=float, metavar="M", help="memory of each device, if A is not known")
    parser.add_argument(
        "--context",
        type=whole_numbers,
        metavar="LENGTHS",
        help="lengths of sequences in tokens, with commas between them "
        f"(default {','.join(map(str, DEFAULT_CONTEXTS))}, as far as the model goes)",
    )
    parser.add_argument(
        "--engram",
        choices=("host", "device", "both"),
        default="both",
        help="where the engram tables are: host memory, the devices, or show both (default)",
    )
    parser.add_argument("--no-draft", action="store_true", help="leave the draft module out")
    parser.add_argument(
        "--memory-share",
        type=float,
        default=DEFAULT_SHARE,
        metavar="S",
        help=f"part of a device's memory for weights and caches (default {DEFAULT_SHARE})",
    )
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    from deepinfer_core.engine.memory_plan import plan_memory
    from deepinfer_core.engine.model_config import fetch_config, find_config

    check_outputs({"--json": args.json}, overwrite=args.overwrite)
    _check_numbers(args)
    accelerators = _accelerators(args)
    cache_dir = str(args.environment.cache_dir or "")
    config = find_config(args.model, download=partial(fetch_config, cache_dir=cache_dir))
    contexts = _contexts(args.context, config.architecture.max_position_embeddings)
    plan = plan_memory(config.architecture, with_draft=not args.no_draft)
    places = _places(args.engram, has_engram=config.architecture.engram is not None)
    verdicts = [
        _Verdict(a, plan.fit(a.memory_bytes, args.devices, contexts, share=args.memory_share, tables=place))
        for a in accelerators
        for place in places
    ]
    print("\n".join(_lines(config, plan, verdicts, args.devices, contexts, args.memory_share)))
    if args.json:
        write_json(args.json, _as_json(config, plan, verdicts, args, contexts))
    return 0 if any(verdict.fit.fits for verdict in verdicts) else 1


def _check_numbers(args: argparse.Namespace) -> None:
    problems: list[str] = []
    if args.memory_gib is not None and not 0 < args.memory_gib < math.inf:
        problems.append(f"--memory-gib {args.memory_gib:g} must be a number of GiB above 0")
    if not 0 < args.memory_share <= 1:
        problems.append(f"--memory-share {args.memory_share:g} must be above 0 and at most 1")
    if problems:
        raise ConfigError(problems, source="fit")


def _accelerators(args: argparse.Namespace) -> Sequence[AcceleratorMemory]:
    """What to compare with: the memory given, the accelerator named, or all that are known."""
    from deepinfer_core.engine.accelerator_memory import AcceleratorMemory, find_accelerator, known_accelerators

    if args.memory_gib is not None:
        memory = int(args.memory_gib * 2**30)
        return [AcceleratorMemory(name=args.accelerator or "given", memory_bytes=memory, source="--memory-gib")]
    return [find_accelerator(args.accelerator)] if args.accelerator else known_accelerators()


def _contexts(given: Sequence[int] | None, longest: int) -> tuple[int, ...]:
    if given is None:
        return tuple(sorted({min(context, longest) for context in DEFAULT_CONTEXTS}))
    wrong = [context for context in given if context > longest]
    if wrong:
        listed = ", ".join(map(str, wrong))
        raise ConfigError(f"--context {listed}: the model's sequences have at most {longest} tokens", source="fit")
    return tuple(sorted(set(given)))


def _places(engram: str, *, has_engram: bool) -> Sequence[TablePlace | None]:
    from deepinfer_core.engine.memory_plan import TABLE_PLACES

    if not has_engram:
        return (None,)
    return [place for place in TABLE_PLACES if engram in (place, "both")]


def _lines(
    config: ModelConfig,
    plan: MemoryPlan,
    verdicts: Sequence[_Verdict],
    num_devices: int,
    contexts: Sequence[int],
    share: float,
) -> Iterator[str]:
    note = " (the config that ships with the project; nothing is downloaded)" if config.is_shipped else ""
    yield f"model {config.model}{note} on {num_devices} device{'s' if num_devices > 1 else ''}"
    yield ""
    yield from _weight_lines(plan, num_devices)
    yield ""
    yield from _cache_lines(plan, contexts)
    yield ""
    yield from _fit_lines(verdicts, num_devices, contexts, share)
    yield ""
    yield _ASSUMPTIONS


def _weight_lines(plan: MemoryPlan, num_devices: int) -> Iterator[str]:
    from deepinfer_core.engine.memory_plan import TABLES

    rows = [("weights", "in all", "on each device", "")]
    for group in plan.groups(num_devices):
        place = ", in host memory or on the devices" if group.name == TABLES else ""
        rows.append((f"  {group.name}", size(group.total_bytes), size(group.device_bytes), group.split + place))
    rows.append(("  together", size(plan.total_bytes), "", ""))
    if plan.not_loaded_bytes:
        rows.append(("  vision", size(plan.not_loaded_bytes), "", "not loaded"))
    yield from columns(rows, right=(1, 2))


def _cache_lines(plan: MemoryPlan, contexts: Sequence[int]) -> Iterator[str]:
    layout = plan.layout
    yield (
        f"caches: {layout.bytes_per_token:,.0f} bytes for a token of context, in blocks of {layout.block_tokens}; "
        f"{size(layout.bytes_per_slot)} of state for a sequence"
    )
    rows = [("  context", "one sequence"), *((f"  {c:,}", size(plan.sequence_bytes(c))) for c in contexts)]
    yield from columns(rows, right=(1,))


def _fit_lines(verdicts: Sequence[_Verdict], num_devices: int, contexts: Sequence[int], share: float) -> Iterator[str]:
    on_all = f" (on all {num_devices})" if num_devices > 1 else ""
    yield f"sequences at once on each device{on_all}, by context; {share:.0%} of a device's memory is used"
    head = ("  accelerator", "memory", "engram", "weights", "for caches", *(f"{c:,}" for c in contexts), "verdict")
    rows: list[Sequence[str]] = [head]
    for verdict in verdicts:
        fit = verdict.fit
        counts = [_count(number, num_devices) for number in fit.sequences.values()]
        needed = f"smallest number: {fit.smallest}" if fit.smallest else "no number is enough"
        rows.append(
            (
                f"  {verdict.accelerator.name}",
                size(fit.memory_bytes),
                fit.tables or "none",
                size(fit.weight_bytes),
                size(fit.free_bytes) if fit.free_bytes > 0 else f"{size(-fit.free_bytes)} short",
                *counts,
                f"{'fits' if fit.fits else 'does not fit'}; {needed}",
            )
        )
    yield from columns(rows, right=range(3, 5 + len(contexts)))
    in_host = max((verdict.fit.host_bytes for verdict in verdicts), default=0)
    if in_host:
        yield f"engram host: the tables take {size(in_host)} of host memory, over all hosts together"
    yield from dict.fromkeys(f"memory of {v.accelerator.name}: {v.accelerator.source}" for v in verdicts)


def _count(number: int, num_devices: int) -> str:
    if not number:
        return "-"
    return f"{number:,} ({number * num_devices:,})" if num_devices > 1 else f"{number:,}"


def _as_json(
    config: ModelConfig,
    plan: MemoryPlan,
    verdicts: Sequence[_Verdict],
    args: argparse.Namespace,
    contexts: Sequence[int],
) -> dict[str, Any]:
    return {
        "model": config.model,
        "config": str(config.folder),
        "devices": args.devices,
        "memory_share": args.memory_share,
        "draft": not args.no_draft,
        "weights": [asdict(group) for group in plan.groups(args.devices)],
        "weights_total_bytes": plan.total_bytes,
        "not_loaded_bytes": plan.not_loaded_bytes,
        "cache": {
            "bytes_per_token": plan.layout.bytes_per_token,
            "bytes_per_block": plan.layout.bytes_per_block,
            "block_tokens": plan.layout.block_tokens,
            "bytes_per_slot": plan.layout.bytes_per_slot,
            "bytes_per_sequence": {str(context): plan.sequence_bytes(context) for context in contexts},
        },
        "accelerators": [_verdict_as_json(verdict, args.devices) for verdict in verdicts],
        "assumptions": " ".join(_ASSUMPTIONS.split()),
    }


def _verdict_as_json(verdict: _Verdict, num_devices: int) -> dict[str, Any]:
    fit = verdict.fit
    return {
        "accelerator": verdict.accelerator.name,
        "source": verdict.accelerator.source,
        "memory_bytes": fit.memory_bytes,
        "usable_bytes": fit.usable_bytes,
        "engram": fit.tables,
        "weight_bytes": fit.weight_bytes,
        "free_bytes": fit.free_bytes,
        "host_bytes": fit.host_bytes,
        "sequences_per_device": {str(context): number for context, number in fit.sequences.items()},
        "sequences": {str(context): number * num_devices for context, number in fit.sequences.items()},
        "fits": fit.fits,
        "smallest_number_of_devices": fit.smallest,
    }
