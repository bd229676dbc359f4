"""Values of JSON Schema keywords: what they must be, and which numbers can be written exactly."""

from __future__ import annotations

import decimal
import math
from collections.abc import Collection
from typing import Any, TypeGuard

LARGEST_NUMBER = 2**53
"""Beyond it a reader of JSON rounds to a neighbouring number."""
NUM_DIGITS = 15
"""A fraction with more digits may be read as its neighbour; the compiler does so."""
SMALLEST_NUMBER = 1e-15
"""Closer to zero than this only zero is written."""
NUMBER_RULE = f"numbers are exact from {SMALLEST_NUMBER:g} to 2^53, fractions to {NUM_DIGITS} digits; stay within that"
LARGEST_MULTIPLE = 100_000
"""Divisors become automata with a state for each remainder."""
_UP = decimal.Context(prec=NUM_DIGITS, rounding=decimal.ROUND_CEILING)
_DOWN = decimal.Context(prec=NUM_DIGITS, rounding=decimal.ROUND_FLOOR)


class MalformedKeyword(ValueError):
    """The value of a keyword is not what JSON Schema wants there."""


def is_number(value: Any) -> TypeGuard[int | float]:
    """True for a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_exact(value: Any) -> bool:
    """True if every number of a JSON value can be written and read back without rounding."""
    if isinstance(value, dict):
        return all(is_exact(member) for member in value.values())
    if isinstance(value, list):
        return all(is_exact(member) for member in value)
    if not is_number(value):
        return True
    return value == 0 or (
        is_in_range(value) and (isinstance(value, int) or _UP.plus(_decimal(value)) == _decimal(value))
    )


def is_in_range(value: float) -> bool:
    """True for zero and for numbers that are neither too large nor too close to it."""
    return value == 0 or SMALLEST_NUMBER <= abs(value) <= LARGEST_NUMBER


def count(value: Any) -> int:
    """A count from 0.

    Raises:
        MalformedKeyword: It is none.
    """
    if is_number(value) and value >= 0 and value == int(value):
        return int(value)
    raise MalformedKeyword("must be a whole number from 0")


def number(value: Any) -> int | float:
    """A finite number.

    Raises:
        MalformedKeyword: It is none.
    """
    if is_number(value) and math.isfinite(value):
        return value
    raise MalformedKeyword("must be a number")


def members(value: Any, *, least: int = 1) -> list[Any]:
    """A list with so many members at least.

    Raises:
        MalformedKeyword: It is none.
    """
    if isinstance(value, list) and len(value) >= least:
        return value
    raise MalformedKeyword("must be a list" + (" that is not empty" if least else ""))


def names(value: Any) -> list[str]:
    """A list of texts.

    Raises:
        MalformedKeyword: It is none.
    """
    found = members(value, least=0)
    if all(isinstance(name, str) for name in found):
        return found
    raise MalformedKeyword("must be a list of texts")


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object.

    Raises:
        MalformedKeyword: It is none.
    """
    if isinstance(value, dict):
        return value
    raise MalformedKeyword("must be a mapping")


def text(value: Any) -> str:
    """A text.

    Raises:
        MalformedKeyword: It is none.
    """
    if isinstance(value, str):
        return value
    raise MalformedKeyword("must be a text")


def just_above(bound: float) -> float:
    """The least number of 15 digits above an exclusive bound: no reader rounds it down to the bound."""
    return SMALLEST_NUMBER if bound == 0 else _number(_UP.next_plus(_decimal(bound)))


def just_below(bound: float) -> float:
    """The largest number of 15 digits below an exclusive bound."""
    return -SMALLEST_NUMBER if bound == 0 else _number(_DOWN.next_minus(_decimal(bound)))


def at_least(bound: float) -> float:
    """An inclusive lower bound in 15 digits, which the compiler reads without rounding."""
    return bound if isinstance(bound, int) else _number(_UP.plus(_decimal(bound)))


def at_most(bound: float) -> float:
    """An inclusive upper bound in 15 digits."""
    return bound if isinstance(bound, int) else _number(_DOWN.plus(_decimal(bound)))


def truncations(bound: float) -> list[float]:
    """The bound cut after fewer decimals, from none to six; nothing for a whole number."""
    exact = _decimal(bound)
    cut = [exact.quantize(decimal.Decimal(1).scaleb(-places), decimal.ROUND_DOWN) for places in range(1, 7)]
    return [float(value) for value in dict.fromkeys(cut) if value not in (0, exact)] if bound != int(bound) else []


def have_common_multiple(divisors: Collection[float]) -> bool:
    """True if the least common multiple of these numbers, in units of their last decimal, is small."""
    exact = [_decimal(divisor).normalize() for divisor in divisors]
    places = max(0, *(-int(value.as_tuple().exponent) for value in exact))
    return math.lcm(*(int(value.scaleb(places)) for value in exact)) < LARGEST_MULTIPLE


def _decimal(value: float) -> decimal.Decimal:
    return decimal.Decimal(repr(value))


def _number(value: decimal.Decimal) -> float:
    return int(value) if value == value.to_integral_value() else float(value)
