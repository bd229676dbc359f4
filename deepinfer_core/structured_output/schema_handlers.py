"""What each keyword of JSON Schema becomes in the schema that is compiled.

The rules come from trying the compiler (``tests/structured_output/test_enforced_keywords.py``), not from its
documentation: it drops unknown keywords without a word, forgets ``prefixItems`` beside ``additionalItems``, counts a
property that comes twice as two, and rounds numbers beyond 2^53.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_core.structured_output import schema_values as values
from deepinfer_core.structured_output.formats import FORMATS
from deepinfer_core.structured_output.pattern import PatternError, search
from deepinfer_core.structured_output.schema_keywords import TYPES
from deepinfer_core.structured_output.schema_walk import Handler, Place, Walker

MAX_INLINED = 32
"""The longest chain of references that is written out."""


def _type(walker: Walker, place: Place) -> None:
    names = [place.value] if isinstance(place.value, str) else values.members(place.value)
    if not all(isinstance(name, str) and name in TYPES for name in names):
        raise values.MalformedKeyword(f"must be one of {', '.join(TYPES)}, or a list of them")
    place.out["type"] = place.value


def _enum(walker: Walker, place: Place) -> None:
    _values(walker, place, values.members(place.value))


def _const(walker: Walker, place: Place) -> None:
    _values(walker, place, [place.value])


def _values(walker: Walker, place: Place, listed: list[Any]) -> None:
    if all(values.is_exact(value) for value in listed):
        place.out[place.keyword] = place.value
    else:
        walker.unenforced(place, values.NUMBER_RULE)


def _ref(walker: Walker, place: Place) -> None:
    target = values.text(place.value)
    if target != "#" and not target.startswith("#/"):
        walker.unenforced(place, "only references within the schema are followed: '#', or '#/' and a JSON pointer")
        return
    walker.resolve(target)
    place.out["$ref"] = walker.reference(target, place.origin)


def _identifier(walker: Walker, place: Place) -> None:
    if place.pointer != "#":
        walker.unenforced(place, "a schema with a name of its own changes what references mean; leave the name out")


def _branches(walker: Walker, place: Place) -> None:
    branches = values.members(place.value)
    rewritten = [walker.branch(place, node, index) for index, node in enumerate(branches)]
    place.out[place.keyword] = [*place.out.get(place.keyword, []), *rewritten]


def _one_of(walker: Walker, place: Place) -> None:
    """A branch that is a reference is written out: the compiler does not look through one for what tells them apart."""
    rewritten: list[Any] = []
    for index, branch in enumerate(values.members(place.value)):
        node, pointer, num_inlined = branch, place.below(index), place.num_inlined
        while num_inlined < MAX_INLINED and isinstance(node, dict) and _is_plain_reference(node):
            pointer = node["$ref"]
            node, num_inlined = walker.resolve(pointer), num_inlined + 1
        rewritten.append(walker.schema(node, pointer, origin=place.origin, num_inlined=num_inlined))
    place.out["oneOf"] = rewritten
    walker.relaxable(place)


def _is_plain_reference(node: dict[str, Any]) -> bool:
    target = node.get("$ref")
    return set(node) == {"$ref"} and isinstance(target, str) and (target == "#" or target.startswith("#/"))


def _properties(walker: Walker, place: Place) -> None:
    listed = values.mapping(place.value)
    place.out["properties"] = {name: walker.part(place, node, name) for name, node in listed.items()}


def _pattern_properties(walker: Walker, place: Place) -> None:
    rewritten: dict[str, Any] = {}
    for pattern, node in values.mapping(place.value).items():
        try:
            key = search(pattern)
        except PatternError as error:
            walker.unenforced(place, f"pattern {pattern!r}, {error}")
            continue
        schema = walker.part(place, node, pattern)
        rewritten[key] = {"allOf": [rewritten[key], schema]} if key in rewritten else schema
    if rewritten:
        place.out["patternProperties"] = rewritten
        walker.relaxable(place)


def _additional_properties(walker: Walker, place: Place) -> None:
    place.out["additionalProperties"] = walker.part(place, place.value)


def _required(walker: Walker, place: Place) -> None:
    place.out["required"] = list(dict.fromkeys(values.names(place.value)))


def _min_properties(walker: Walker, place: Place) -> None:
    """Free names may repeat, so at most one property beyond the required ones can be counted on."""
    least = values.count(place.value)
    required = place.node.get("required", [])
    num_required = len(set(values.names(required)))
    if least <= num_required:
        return
    if least > num_required + 1:
        walker.unenforced(place, "names may repeat, so at most one more than the required ones is counted")
        return
    place.out["minProperties"] = least
    walker.relaxable(place)


def _max_properties(walker: Walker, place: Place) -> None:
    place.out["maxProperties"] = values.count(place.value)
    walker.relaxable(place)


def _items(walker: Walker, place: Place) -> None:
    """A list is what older drafts write for ``prefixItems``, with ``additionalItems`` for the rest."""
    if not isinstance(place.value, list):
        place.out["items"] = walker.part(place, place.value)
        return
    if "prefixItems" in place.node:
        raise values.MalformedKeyword("must be a schema beside prefixItems")
    place.out["prefixItems"] = [walker.part(place, node, index) for index, node in enumerate(place.value)]


def _prefix_items(walker: Walker, place: Place) -> None:
    listed = values.members(place.value)
    place.out["prefixItems"] = [walker.part(place, node, index) for index, node in enumerate(listed)]


def _additional_items(walker: Walker, place: Place) -> None:
    if isinstance(place.node.get("items"), list):
        place.out["items"] = walker.part(place, place.value)
    else:
        walker.unenforced(place, "it means something only beside a list of items; write items for the rest of an array")


def _unique_items(walker: Walker, place: Place) -> None:
    if not isinstance(place.value, bool):
        raise values.MalformedKeyword("must be true or false")
    most = place.node.get("maxItems")
    if place.value and not (values.is_number(most) and most <= 1):
        walker.unenforced(place, "items are not compared; list the allowed arrays with enum, or check the output")


def _count(walker: Walker, place: Place) -> None:
    place.out[place.keyword] = values.count(place.value)


def _pattern(walker: Walker, place: Place) -> None:
    try:
        _match(place, search(values.text(place.value)))
    except PatternError as error:
        walker.unenforced(place, str(error))


def _format(walker: Walker, place: Place) -> None:
    found = FORMATS.get(values.text(place.value))
    if found is None:
        walker.unenforced(place, f"format {place.value!r} is not known; known are {', '.join(sorted(FORMATS))}")
    else:
        _match(place, search(found))


def _match(place: Place, pattern: str) -> None:
    """Add a pattern; the compiler wants a second one in a schema of its own."""
    if "pattern" in place.out:
        _meet(place, {"pattern": pattern})
    else:
        place.out["pattern"] = pattern


def _bound(walker: Walker, place: Place) -> None:
    """An exclusive bound becomes the next number within: readers round a longer one to the bound itself."""
    bound = values.number(place.value)
    if not values.is_in_range(bound):
        walker.unenforced(place, values.NUMBER_RULE)
    elif place.keyword in ("minimum", "exclusiveMinimum"):
        least = values.just_above(bound) if place.keyword == "exclusiveMinimum" else values.at_least(bound)
        _limit(place, "minimum", least)
    else:
        most = values.just_below(bound) if place.keyword == "exclusiveMaximum" else values.at_most(bound)
        _limit(place, "maximum", most)


def _limit(place: Place, keyword: str, bound: float) -> None:
    """Add a bound; below 3.25 the compiler forgets 3.2, above -3.25 it forgets -3.2, so these are named."""
    forgotten = values.truncations(bound) if (bound > 0) == (keyword == "maximum") else []
    if place.node.get("type") == "integer" or not forgotten:
        _meet(place, {keyword: bound})
    else:
        _meet(place, {"anyOf": [{keyword: bound}, *({"const": value} for value in forgotten)]})


def _meet(place: Place, schema: dict[str, Any]) -> None:
    place.out["allOf"] = [*place.out.get("allOf", []), schema]


def _multiple_of(walker: Walker, place: Place) -> None:
    divisor = values.number(place.value)
    if divisor <= 0:
        raise values.MalformedKeyword("must be above 0")
    if not values.is_exact(divisor):
        walker.unenforced(place, values.NUMBER_RULE)
    elif not values.have_common_multiple({*walker.divisors, divisor}):
        walker.unenforced(
            place, f"the divisors of a schema must have a common multiple below {values.LARGEST_MULTIPLE}"
        )
    else:
        walker.divisors.add(divisor)
        place.out["multipleOf"] = divisor


HANDLERS: Mapping[str, Handler] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "$ref": _ref,
    "$id": _identifier,
    "id": _identifier,
    **dict.fromkeys(("allOf", "anyOf"), _branches),
    "oneOf": _one_of,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "uniqueItems": _unique_items,
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _count),
    "pattern": _pattern,
    "format": _format,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _bound),
    "multipleOf": _multiple_of,
}
"""Keyword -> what it becomes; the keywords that are enforced, most with a condition."""
