"""Every exception that the project raises on purpose.

A message says who complains, what was given, what was allowed and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class DeepInferError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(DeepInferError, ValueError):
    """A setting is wrong; ``problems`` lists every one that was found."""

    def __init__(self, problems: str | Sequence[str], source: str = "configuration") -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        self.source = source
        super().__init__(describe(source, self.problems))


class CheckpointError(DeepInferError, ValueError):
    """Weights are missing, extra, truncated or misshapen; ``problems`` lists every one found."""

    def __init__(self, problems: str | Sequence[str], source: str = "checkpoint") -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        self.source = source
        super().__init__(describe(source, self.problems))


class RequestError(DeepInferError, ValueError):
    """One request is wrong (prompt, parameters); its neighbours are not affected."""


class ContractError(DeepInferError, ValueError):
    """A call broke the contract of an op."""


class ShapeError(ContractError):
    """Two arguments of an op disagree about an axis, or a size is not allowed."""


class DtypeError(ContractError):
    """An argument of an op has an element type or format that its contract does not list."""


class LayoutError(ContractError):
    """An argument of an op has a memory layout that its contract does not allow."""


class UnsupportedByBackend(DeepInferError, NotImplementedError):
    """Valid calls that a backend refuses by a stated limit or by policy."""

    def __init__(self, backend: str, problems: Sequence[str]) -> None:
        self.backend = backend
        self.problems = tuple(problems)
        super().__init__(describe(f"backend {backend!r}", self.problems))


class BackendNotFound(DeepInferError, LookupError):
    """No usable backend answers to the accelerator that was asked for."""


class BackendLoadError(DeepInferError, ImportError):
    """A backend was found but could not be loaded; the original error is chained."""


class CapacityError(DeepInferError, RuntimeError):
    """Blocks, state slots or memory ran out; the message says how many were needed."""


class NumericError(DeepInferError, RuntimeError):
    """A row of the model's output is not finite."""


class InternalError(DeepInferError, RuntimeError):
    """An invariant of our own broke; please report it."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`InternalError` unless an invariant of our own holds."""
    if not condition:
        raise InternalError(f"{message} (this is a bug in DeepInfer, please report it)")


def describe(source: str, problems: Sequence[str]) -> str:
    """One line for one problem, a numbered list for several."""
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    lines = [f"{source}: {len(problems)} problems"]
    lines += [f"  {number}. {problem}" for number, problem in enumerate(problems, 1)]
    return "\n".join(lines)


def wrong_choices(values: Mapping[str, object], allowed: Mapping[str, Sequence[str]]) -> list[str]:
    """A problem for each value that is none of those allowed for its name."""
    return [
        f"{name}={value!r} is unknown; choose one of {', '.join(allowed[name])}{nearest(str(value), allowed[name])}"
        for name, value in values.items()
        if value not in allowed[name]
    ]


def nearest(name: str, candidates: Sequence[str]) -> str:
    """A hint ``; did you mean 'x'?`` for a misspelt name, or an empty string."""
    import difflib

    found = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""
