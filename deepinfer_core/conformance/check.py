"""One check of the kit, how it fails, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from deepinfer_core.errors import DeepInferError

Status = Literal["passed", "refused", "known failure", "failed"]


class ConformanceFailure(DeepInferError, AssertionError):
    """A backend, or a reference, does not do what a contract says; the message explains the difference."""


def expect(condition: bool, message: str) -> None:
    """Raise :class:`ConformanceFailure` unless a statement about the backend holds."""
    if not condition:
        raise ConformanceFailure(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One statement about a backend that can be tried on its own.

    Attributes:
        id: ``suite/subject/...``, unique; what ``--only``, reports and known failures refer to.
        family: Row of the summary it is counted in: the op's family, or ``device``.
        run: Tries it. Raises when it does not hold; returns the reason, in words, when the backend
            refuses the case by a stated limit (and the refusal itself is right), else an empty string.
    """

    id: str
    family: str
    run: Callable[[], str | None]

    @property
    def suite(self) -> str:
        return self.id.split("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one check.

    Attributes:
        id: The check's.
        family: The check's.
        status: ``passed``, ``refused`` (by a stated limit), ``known failure`` or ``failed``.
        detail: Why it was refused or failed.
        seconds: Wall time.
    """

    id: str
    family: str
    status: Status
    detail: str = ""
    seconds: float = 0.0
