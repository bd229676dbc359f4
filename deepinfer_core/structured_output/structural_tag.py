"""Structural tags: free text in which every trigger begins a tag whose content follows a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.structured_output.pattern import literal

_FIELDS = {"type", "structures", "triggers"}
_TAG_FIELDS = ("begin", "schema", "end")


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag.

    Attributes:
        begin: Text that opens it; begins with a trigger.
        schema: JSON schema of what is inside.
        end: Text that closes it.
        pointer: Where its schema stands in the request's document.
    """

    begin: str
    schema: Any
    end: str
    pointer: str


@dataclass(frozen=True, slots=True)
class StructuralTags:
    """All tags of a request, and the texts behind which one of them must follow."""

    tags: Sequence[Tag]
    triggers: Sequence[str]


def read_structural_tags(document: Any) -> tuple[StructuralTags, list[str]]:
    """The tags of a document, and what is wrong with it."""
    if not isinstance(document, Mapping):
        return StructuralTags((), ()), ["#: must be a mapping with structures and triggers"]
    problems = [
        f"#: {name!r} is not known; tags are written as structures and triggers"
        for name in document
        if name not in _FIELDS
    ]
    structures, triggers = document.get("structures"), document.get("triggers")
    if not isinstance(structures, list) or not structures:
        problems.append("#: structures must be a list that is not empty")
        structures = []
    if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
        problems.append("#: triggers must be a list of texts that are not empty")
        triggers = []
    tags = [_tag(structure, f"#/structures/{index}", problems) for index, structure in enumerate(structures)]
    found = StructuralTags([tag for tag in tags if tag is not None], list(dict.fromkeys(triggers)))
    return found, problems + ([] if problems else _trigger_problems(found))


def _tag(structure: Any, pointer: str, problems: list[str]) -> Tag | None:
    if not isinstance(structure, Mapping) or set(structure) != set(_TAG_FIELDS):
        problems.append(f"{pointer}: must be a mapping of {', '.join(_TAG_FIELDS)}")
        return None
    if not isinstance(structure["begin"], str) or not isinstance(structure["end"], str):
        problems.append(f"{pointer}: begin and end must be texts")
        return None
    return Tag(structure["begin"], structure["schema"], structure["end"], f"{pointer}/schema")


def _trigger_problems(found: StructuralTags) -> list[str]:
    """A trigger must tell at once that a tag begins, and which ones it may be."""
    problems = [
        f"#/triggers: {long!r} contains {short!r}; keep one of them"
        for long in found.triggers
        for short in found.triggers
        if short != long and short in long
    ]
    begins = [tag.begin for tag in found.tags]
    problems += [f"#/triggers: no tag begins with {t!r}" for t in found.triggers if not _beginning(begins, t)]
    problems += [
        f"{tag.pointer}: begin {tag.begin!r} starts with no trigger"
        for tag in found.tags
        if not any(tag.begin.startswith(trigger) for trigger in found.triggers)
    ]
    return problems


def _beginning(begins: Sequence[str], trigger: str) -> list[str]:
    return [begin for begin in begins if begin.startswith(trigger)]


def tags_grammar(found: StructuralTags, schemas: Sequence[str]) -> str:
    """Lark grammar of the tags.

    Free text holds no trigger, and the text up to a trigger holds it only at its end: so nobody can write a trigger
    and go on with something else.

    Args:
        found: The tags.
        schemas: JSON text of each tag's schema, for the compiler.
    """
    triggers = "|".join(literal(trigger) for trigger in found.triggers)
    lines = [
        "%llguidance {}",
        "start: tag* REST",
        f"tag: {' | '.join(f'tag_{number}' for number in range(len(found.triggers)))}",
        f"REST: /(?s:.*)/ & ~/(?s:.*)(?:{triggers})(?s:.*)/",
    ]
    for number, trigger in enumerate(found.triggers):
        bodies = [
            " ".join([*_text(tag.begin[len(trigger) :]), f"%json {schema}", *_text(tag.end)])
            for tag, schema in zip(found.tags, schemas, strict=True)
            if tag.begin.startswith(trigger)
        ]
        lines.append(f"tag_{number}: HEAD_{number} ({' | '.join(bodies)})")
        lines.append(f"HEAD_{number}: /(?s:.*){literal(trigger)}/ & ~/(?s:.*)(?:{triggers})(?s:.+)/")
    return "\n".join(lines) + "\n"


def _text(text: str) -> list[str]:
    return [f"/{literal(text)}/"] if text else []
