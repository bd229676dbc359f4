"""Keywords of JSON Schema that say nothing about validity, and those that are not enforced, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

ANNOTATIONS = frozenset(
    {
        *("$comment", "$schema", "$defs", "definitions", "title", "description", "default", "examples", "example"),
        *("deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        *("components", "discriminator", "externalDocs", "xml", "$anchor", "$dynamicAnchor"),
    }
)
"""Dropped: a validator does not ask for them. ``$defs`` and ``components`` are read where a ``$ref`` points to them."""

_DEPENDENT = "one property cannot depend on another; write the cases with anyOf"
_CONDITION = "conditions are not enforced; write the cases with anyOf"
_CONTAINS = "items are written one after the other without a count of those that match"
_UNEVALUATED = "what other subschemas have looked at is not tracked; list the properties or items and close the schema"
_DYNAMIC = "dynamic references are not followed; use $ref"

UNENFORCED: Mapping[str, str] = {
    "not": "a schema cannot be excluded; say what is allowed",
    "if": _CONDITION,
    "then": _CONDITION,
    "else": _CONDITION,
    "dependencies": _DEPENDENT,
    "dependentRequired": _DEPENDENT,
    "dependentSchemas": _DEPENDENT,
    "propertyNames": "names of properties are bound by patternProperties with additionalProperties: false",
    "contains": _CONTAINS,
    "minContains": _CONTAINS,
    "maxContains": _CONTAINS,
    "unevaluatedItems": _UNEVALUATED,
    "unevaluatedProperties": _UNEVALUATED,
    "$dynamicRef": _DYNAMIC,
    "$recursiveRef": _DYNAMIC,
    "$recursiveAnchor": _DYNAMIC,
    "$vocabulary": "other vocabularies are not known",
    "nullable": "this is OpenAPI, not JSON Schema; add 'null' to type",
}
"""Keyword -> why it is refused."""

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas are about the same value as the schema that holds them."""
