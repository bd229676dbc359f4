"""``deepinfer diff``: find the first tensor in which two traces part."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.diff import Bound, Comparison, TraceDifference
    from deepinfer_core.engine.trace_file import TraceFile

EXIT_DIFFERENT = 1
_SHOWN = 6
"""Names that a line shows."""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "diff",
        description="Compare two traces tensor by tensor, in the order in which the model makes them. Exit code 0 when "
        "they agree, 1 when they differ, with the first difference. A golden file holds several variants: name one "
        "behind the file, e.g. recall.safetensors::f32.",
    )
    parser.add_argument("left", metavar="A.safetensors", help="a trace, or FILE::VARIANT of a golden file")
    parser.add_argument("right", metavar="B.safetensors", help="what it is compared with")
    parser.add_argument(
        "--numerics", metavar="N", help="arithmetic whose tolerance is used (default: the coarser one of the two files)"
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="X", help="largest difference, in units of a tensor's largest entry"
    )
    parser.add_argument("--all", action="store_true", help="list every tensor with its largest difference")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    from deepinfer_core.engine.diff import compare_traces
    from deepinfer_core.engine.trace_file import read_trace

    left, right = read_trace(args.left), read_trace(args.right)
    found = compare_traces(left.tensors, right.tensors, _bounds(args, left, right))
    if not found.comparisons:
        raise RequestError(f"diff: {args.left} and {args.right} have no tensor in common; are both of them traces?")
    print("\n".join(_lines(left, right, found, list_all=args.all)))
    return EXIT_DIFFERENT if found.different else 0


def _bounds(args: argparse.Namespace, left: TraceFile, right: TraceFile) -> Bound:
    from deepinfer_core.config.numerics import variant
    from deepinfer_core.engine.diff import bounds_of

    if args.tolerance is None:
        return bounds_of(variant(args.numerics).name) if args.numerics else bounds_of(left.numerics, right.numerics)
    if not 0 <= args.tolerance < math.inf:
        raise RequestError(f"diff: --tolerance is {args.tolerance}; give a number, 0 or more")
    return lambda _name: args.tolerance


def _lines(left: TraceFile, right: TraceFile, found: TraceDifference, *, list_all: bool) -> Iterator[str]:
    for letter, trace in (("A", left), ("B", right)):
        yield f"{letter}: {trace.source}{_origin(trace)}"
    if list_all:
        yield from _table(found.comparisons)
    for letter, names in (("A", found.only_left), ("B", found.only_right)):
        if names:
            yield f"note: only in {letter}: {_listing(names, len(names) if list_all else _SHOWN)}"
    different = found.different
    if not different:
        yield f"equal: {len(found.comparisons)} tensors within {_allowed(found)} of the largest entry{_ties(found)}"
        return
    first, *others = different
    yield f"first difference: {_describe(first)}"
    if first.name == "input/ids":
        yield "the prompts differ, so nothing else can be compared"
    elif others:
        names = _listing([c.name for c in others], _SHOWN)
        yield f"{len(others)} more of {len(found.comparisons)} tensors differ: {names}"


def _listing(names: Sequence[str], num_shown: int) -> str:
    hidden = len(names) - num_shown
    return ", ".join([*names[:num_shown], *([f"and {hidden} more"] if hidden > 0 else [])])


def _allowed(found: TraceDifference) -> str:
    """The tolerances that were used, the one of most tensors first."""
    counts = Counter(f"{c.allowed:g}" for c in found.comparisons if not c.is_choice)
    return " or ".join(text for text, _ in counts.most_common()) or "0"


def _origin(trace: TraceFile) -> str:
    """What the file says about the run that made it."""
    told = {"numerics": trace.numerics, **{key: trace.metadata.get(key, "") for key in ("accelerator", "chunk")}}
    words = [f"{key} {value}" for key, value in told.items() if value]
    return f" ({', '.join(words)})" if words else ""


def _describe(comparison: Comparison) -> str:
    """The place, both values, the size of the difference and what is allowed."""
    first = comparison.first
    if first is None:
        return f"{comparison.name} agrees"
    text = f"{comparison.name} at {first.place}: {first.left} in A, {first.right} in B"
    if comparison.is_choice:
        return f"{text}; {comparison.error:g} such differences"
    if math.isinf(comparison.error):
        return f"{text}; beyond any tolerance"
    return (
        f"{text}; the largest difference is {comparison.error:.2g} of the largest entry, allowed {comparison.allowed:g}"
    )


def _table(comparisons: tuple[Comparison, ...]) -> Iterator[str]:
    """One tensor a line."""
    width = max((len(c.name) for c in comparisons), default=0)
    for c in comparisons:
        size = f"{c.error:g} differ" if c.is_choice else f"{c.error:.1e}"
        ties = f"{c.num_ties} ties" if c.num_ties else ""
        yield f"  {c.name:<{width}}  {size:>10}  {'DIFFERS' if c.first else 'agrees':<7}  {ties}".rstrip()


def _ties(found: TraceDifference) -> str:
    count = sum(c.num_ties for c in found.comparisons)
    return f", {count} choices among equal scores" if count else ""
