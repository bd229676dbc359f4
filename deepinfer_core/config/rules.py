"""What one value of a model's config file may be; a rule returns the value as our records keep it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

Rule = Callable[[object], object]
"""Takes a value as parsed from JSON, returns it converted, or raises :class:`Refused`."""


class Refused(ValueError):
    """A value breaks its rule; the text says what is allowed."""


def exactly(allowed: object, otherwise: str = "") -> Rule:
    """Accept one value only; ``otherwise`` adds why or what to do."""

    def rule(value: object) -> object:
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise Refused(f"only {allowed!r} is supported{otherwise}")
        return value

    return rule


def one_of(*allowed: str) -> Rule:
    """Accept one of several words."""

    def rule(value: object) -> object:
        if not isinstance(value, str) or value not in allowed:
            raise Refused(f"it must be {' or '.join(map(repr, allowed))}")
        return value

    return rule


def integer(at_least: int) -> Rule:
    """Accept whole numbers from ``at_least`` on (and not ``true``)."""

    def rule(value: object) -> object:
        if not _is_integer(value) or cast(int, value) < at_least:
            raise Refused(f"it must be a whole number, {at_least} or more")
        return value

    return rule


def number(*, above: float | None = None, at_least: float | None = None) -> Rule:
    """Accept finite numbers, whole ones too, as ``float``."""
    bound = f" above {above:g}" if above is not None else f", {at_least:g} or more" if at_least is not None else ""

    def rule(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Refused(f"it must be a number{bound}")
        if (above is not None and value <= above) or (at_least is not None and value < at_least):
            raise Refused(f"it must be a number{bound}")
        return float(value)

    return rule


def boolean(value: object) -> object:
    """Accept ``true`` and ``false``."""
    if not isinstance(value, bool):
        raise Refused("it must be true or false")
    return value


def integers(at_least: int = 0) -> Rule:
    """Accept a list of whole numbers, as a tuple."""

    def rule(value: object) -> object:
        if not isinstance(value, list):
            raise Refused("it must be a list of whole numbers")
        items = cast(Sequence[object], value)
        if not all(_is_integer(item) and cast(int, item) >= at_least for item in items):
            raise Refused(f"it must be a list of whole numbers, each {at_least} or more")
        return tuple(items)

    return rule


def ratios(value: object) -> object:
    """Accept a list of compression ratios 0, 1 and 2."""
    if not isinstance(value, list) or not all(_is_integer(r) and r in (0, 1, 2) for r in cast(Sequence[object], value)):
        raise Refused("it must be a list of the numbers 0, 1 and 2")
    return tuple(cast(Sequence[int], value))


def sorted_layers(value: object) -> object:
    """Accept a list of layer numbers in ascending order without repeats."""
    layers = cast(tuple[int, ...], integers()(value))
    if list(layers) != sorted(set(layers)):
        raise Refused("it must be a list of layer numbers in ascending order, each once")
    return layers


def distinct_layers(value: object) -> object:
    """Accept a list of layer numbers in any order without repeats."""
    layers = cast(tuple[int, ...], integers()(value))
    if len(set(layers)) != len(layers):
        raise Refused("it must be a list of layer numbers, each once")
    return layers


def layer_or_off(value: object) -> object:
    """Accept a layer number; ``null`` and negative numbers both mean "off" and give ``None``."""
    if value is None:
        return None
    if not _is_integer(value):
        raise Refused("it must be a layer number, or null (or -1) for off")
    return value if cast(int, value) >= 0 else None


def clamp_or_off(value: object) -> object:
    """Accept a clamp; ``null`` and numbers not above zero mean "no clamp" and give ``None``."""
    if value is None:
        return None
    clamp = cast(float, number()(value))
    return clamp if clamp > 0 else None


def unless_null(rule: Rule) -> Rule:
    """Accept ``null`` as it is, anything else by ``rule``."""
    return lambda value: None if value is None else rule(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
