"""The walk over a JSON schema that rewrites it for the grammar compiler and collects what cannot be enforced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from deepinfer_core.errors import nearest
from deepinfer_core.structured_output.schema_keywords import ANNOTATIONS, UNENFORCED
from deepinfer_core.structured_output.schema_values import MalformedKeyword

MAX_SCHEMAS = 20_000
"""The most subschemas, references within ``oneOf`` written out."""

Schema = dict[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A keyword that outputs may violate.

    Attributes:
        pointer: JSON pointer to the schema that holds it.
        keyword: Its name.
        reason: Why, and what to write instead.
    """

    pointer: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.keyword!r} is not enforced: {self.reason}"


@dataclass(frozen=True, slots=True)
class Relaxable:
    """A keyword of the rewritten schema that the compiler may still turn down, depending on what is beside it."""

    pointer: str
    keyword: str
    node: dict[str, Any]

    def relax(self) -> Callable[[], None]:
        """Weaken the schema by this keyword; calling the result undoes it."""
        kept = dict(self.node)
        value = self.node.pop(self.keyword)
        if self.keyword == "oneOf":
            self.node["allOf"] = [*self.node.get("allOf", []), {"anyOf": value}]

        def restore() -> None:
            self.node.clear()
            self.node.update(kept)

        return restore


@dataclass(slots=True)
class RewrittenSchema:
    """A schema for the compiler.

    Attributes:
        schema: What to compile.
        unenforced: Keywords that were left out.
        malformed: What is wrong with the schema itself, in words.
        relaxable: Keywords that the compiler may turn down.
    """

    schema: Schema = True
    unenforced: list[Unenforced] = field(default_factory=list[Unenforced])
    malformed: list[str] = field(default_factory=list[str])
    relaxable: list[Relaxable] = field(default_factory=list[Relaxable])


@dataclass(frozen=True, slots=True)
class Place:
    """One keyword in one schema.

    Attributes:
        keyword: The keyword.
        value: Its value.
        node: The schema that holds it.
        pointer: JSON pointer to that schema.
        out: The rewritten schema, to be filled.
        origin: Where the walk began; None once it has left the value that the schema there is about.
        num_inlined: References that were written out on the way.
    """

    keyword: str
    value: Any
    node: dict[str, Any]
    pointer: str
    out: dict[str, Any]
    origin: str | None
    num_inlined: int

    def below(self, *steps: str | int) -> str:
        """JSON pointer to a part of the keyword's value."""
        escaped = [str(step).replace("~", "~0").replace("/", "~1") for step in steps]
        return "/".join([self.pointer, self.keyword, *escaped])


Handler = Callable[["Walker", Place], None]


class Walker:
    """Walks a schema from its root, and once from every target of a reference.

    Targets are copied to definitions of the rewritten schema, so that a reference may point anywhere in the original,
    and what nothing refers to is not read.

    Attributes:
        found: The result, as far as the walk has come.
        divisors: Of ``multipleOf``, so far: the compiler multiplies those that may meet.
    """

    def __init__(self, document: Any, handlers: Mapping[str, Handler]) -> None:
        self.found = RewrittenSchema()
        self.divisors: set[float] = set()
        self._document = document
        self._handlers = handlers
        self._names: dict[str, str] = {}
        self._pending: deque[str] = deque()
        self._same_value: dict[str, set[str]] = {}
        self._num_schemas = 0

    def run(self) -> RewrittenSchema:
        """Rewrite everything that the root reaches."""
        root = self.schema(self._document, "#", origin="#")
        definitions: dict[str, Schema] = {}
        while self._pending:
            pointer = self._pending.popleft()
            definitions[self._names[pointer]] = self.schema(self.resolve(pointer), pointer, origin=pointer)
        if isinstance(root, dict) and definitions:
            root["$defs"] = definitions
        self._check_recursion()
        self.found.schema = root
        return self.found

    def schema(self, node: Any, pointer: str, *, origin: str | None = None, num_inlined: int = 0) -> Schema:
        """Rewrite the schema at a place."""
        if isinstance(node, bool):
            return node
        self._num_schemas += 1
        if not isinstance(node, dict) or self._num_schemas > MAX_SCHEMAS:
            if self._num_schemas <= MAX_SCHEMAS:
                self.malformed(pointer, "a schema must be a mapping, true or false")
            elif self._num_schemas == MAX_SCHEMAS + 1:
                self.malformed(pointer, f"more than {MAX_SCHEMAS} subschemas, references within oneOf written out")
            return True
        out: dict[str, Any] = {}
        for keyword, value in node.items():
            self._keyword(Place(keyword, value, node, pointer, out, origin, num_inlined))
        return out

    def part(self, place: Place, node: Any, *steps: str | int) -> Schema:
        """Rewrite a part of a keyword that is about another value: a property, an item."""
        return self.schema(node, place.below(*steps))

    def branch(self, place: Place, node: Any, index: int) -> Schema:
        """Rewrite a part of a keyword that is about the same value."""
        return self.schema(node, place.below(index), origin=place.origin, num_inlined=place.num_inlined)

    def reference(self, target: str, origin: str | None) -> str:
        """The reference, in the rewritten schema, to what a pointer of the original points to."""
        if origin is not None:
            self._same_value.setdefault(origin, set()).add(target)
        if target not in self._names:
            self._names[target] = f"r{len(self._names)}"
            self._pending.append(target)
        return f"#/$defs/{self._names[target]}"

    def resolve(self, pointer: str) -> Any:
        """What a JSON pointer of the original points to.

        Raises:
            MalformedKeyword: Nothing.
        """
        node = self._document
        for step in pointer.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise MalformedKeyword(f"{pointer!r} points to nothing in the schema")
        return node

    def malformed(self, pointer: str, problem: str) -> None:
        """Note a mistake in the schema."""
        self.found.malformed.append(f"{pointer}: {problem}")

    def unenforced(self, place: Place, reason: str) -> None:
        """Note that the keyword is left out."""
        self.found.unenforced.append(Unenforced(place.pointer, place.keyword, reason))

    def relaxable(self, place: Place) -> None:
        """Note that the compiler may turn the keyword down."""
        self.found.relaxable.append(Relaxable(place.pointer, place.keyword, place.out))

    def _keyword(self, place: Place) -> None:
        handler = self._handlers.get(place.keyword)
        if handler is not None:
            try:
                handler(self, place)
            except MalformedKeyword as error:
                self.malformed(place.pointer, f"{place.keyword!r} {error}")
        elif place.keyword not in ANNOTATIONS and not place.keyword.startswith("x-"):
            unknown = f"no such keyword is known{nearest(place.keyword, list(self._handlers))}"
            self.unenforced(place, UNENFORCED.get(place.keyword, unknown))

    def _check_recursion(self) -> None:
        """Refuse references that lead back to themselves without a property or an item in between."""
        done: set[str] = set()
        for start in self._same_value:
            path: list[tuple[str, list[str]]] = [(start, sorted(self._same_value.get(start, ())))]
            on_path = {start}
            while path:
                at, targets = path[-1]
                if not targets:
                    path.pop()
                    on_path.discard(at)
                    done.add(at)
                    continue
                target = targets.pop()
                if target in on_path:
                    self.malformed(target, "it refers to itself for the same value, which allows everything or nothing")
                    return
                if target not in done:
                    path.append((target, sorted(self._same_value.get(target, ()))))
                    on_path.add(target)
