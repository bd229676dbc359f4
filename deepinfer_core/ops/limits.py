"""Limits: what an implementation cannot do, as data with a reason in words.

The binder, the conformance kit, the error message and the support matrix all read the same limit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Site:
    """The static facts of one place where the graph calls an op.

    Attributes:
        sizes: Size of each static axis letter that is known.
        attributes: Values of the op's attributes.
        dtype: Element type in which activations flow (``bf16``, ``f32`` or ``f64``).
        facts: Facts of the device, e.g. ``{"architecture": "x86"}``.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bf16"
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on a site.

    Attributes:
        text: The rule in words, e.g. ``N must be 64 or 128``.
        holds: True when the site is within the limit.
        actual: What the site has, for the message.
    """

    text: str
    holds: Callable[[Site], bool]
    actual: Callable[[Site], str] = lambda site: ""

    def refusal(self, site: Site) -> str:
        """Empty when the limit holds, else what was given and what is allowed."""
        if self.holds(site):
            return ""
        actual = self.actual(site)
        return f"{actual}: {self.text}" if actual else self.text


def multiple_of(axis: str, number: int) -> Limit:
    """The axis must be a multiple of ``number`` (an axis that the site does not state passes)."""
    return Limit(
        f"{axis} must be a multiple of {number}", lambda s: s.sizes.get(axis, number) % number == 0, _size(axis)
    )


def one_of(axis: str, *allowed: int) -> Limit:
    """The axis must have one of the sizes given."""
    words = " or ".join(map(str, allowed))
    return Limit(f"{axis} must be {words}", lambda s: s.sizes.get(axis, allowed[0]) in allowed, _size(axis))


def at_most(axis: str, number: int) -> Limit:
    """The axis may have at most this size."""
    return Limit(f"{axis} must be at most {number}", lambda s: s.sizes.get(axis, 0) <= number, _size(axis))


def dtype_in(*allowed: str) -> Limit:
    """Activations must flow in one of these element types."""
    return Limit(
        f"activations must be {' or '.join(allowed)}",
        lambda s: s.dtype in allowed,
        lambda s: f"activations are {s.dtype}",
    )


def attribute_in(name: str, *allowed: Any) -> Limit:
    """An attribute must have one of the values given (an attribute that the site does not state passes)."""
    words = " or ".join(map(repr, allowed))
    return Limit(
        f"{name} must be {words}",
        lambda s: s.attributes.get(name, allowed[0]) in allowed,
        lambda s: f"{name}={s.attributes.get(name)!r}",
    )


def needs_package(name: str) -> Limit:
    """A Python package must be installed."""
    return Limit(f"needs the package {name}", lambda s: importlib.util.find_spec(name) is not None)


def needs_architecture(*allowed: str) -> Limit:
    """The device must be of one of these architectures, as its facts state it."""
    return Limit(
        f"needs architecture {' or '.join(allowed)}",
        lambda s: s.facts.get("architecture") in allowed,
        lambda s: f"architecture is {s.facts.get('architecture', 'unknown')}",
    )


def _size(axis: str) -> Callable[[Site], str]:
    return lambda site: f"{axis}={site.sizes.get(axis)}"
