"""A published config file (``config.json``, already parsed) -> :class:`ModelArchitecture`; every problem at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from deepinfer_core.config.architecture import (
    MAX_BACKTRACK_TOKENS,
    AttentionArchitecture,
    DraftArchitecture,
    EngramArchitecture,
    ExpertArchitecture,
    HyperConnectionArchitecture,
    IndexerArchitecture,
    ModelArchitecture,
    RopeScaling,
    VisionArchitecture,
)
from deepinfer_core.config.engram_geometry import engram_rows
from deepinfer_core.config.keys import INDEX_KEY_SOURCES, KEYS, REQUIRED, SECTIONS, Key
from deepinfer_core.config.relations import broken_relations
from deepinfer_core.config.rules import Refused
from deepinfer_core.errors import ConfigError, nearest

_SURELY_MISSPELT = 0.85
"""Similarity (of at most 1) from which an unused key is taken for a misspelt one: keys of other tools must not be."""

_ENGRAM_ROWS = "text_config.engram_num_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """What a config file says, right or wrong.

    Attributes:
        architecture: The model; ``None`` when a problem leaves its shape open. It is there in spite of
            ``problems`` that leave every size known (quantisation, stated table rows), so that tensors can be checked.
        problems: Everything that is wrong with the file.
        unused: Dotted names of keys that are there but not read.
        hints: Unused keys that look like misspelt optional ones, in words.
    """

    architecture: ModelArchitecture | None
    problems: tuple[str, ...]
    unused: tuple[str, ...]
    hints: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is unusual but harmless: keys that are not used, each listed once, and hints on their spelling."""
        listed = (f"keys of the config that are not used: {', '.join(self.unused)}",) if self.unused else ()
        return (*listed, *self.hints)


def read_architecture(
    config: Mapping[str, Any], source: str = "config.json"
) -> tuple[ModelArchitecture, tuple[str, ...]]:
    """The architecture that a config file describes, and the keys of the file that are not used.

    Args:
        config: The parsed file.
        source: Name of the file in errors.

    Raises:
        ConfigError: The file is not a valid config of this format; all problems are in it.
    """
    parsed = parse_config(config)
    if parsed.problems or parsed.architecture is None:
        raise ConfigError(parsed.problems, source)
    return parsed.architecture, parsed.unused


def parse_config(config: Mapping[str, Any]) -> ParsedConfig:
    """Read a config file and collect everything that is wrong with it; nothing is raised."""
    reading = _Reading(config)
    for key in KEYS:
        reading.read(key)
    reading.problems += broken_relations(reading.values)
    shape_is_known = all(problem.startswith("quantization_config") for problem in reading.problems)
    architecture = _build(reading) if shape_is_known else None
    if architecture is not None and architecture.engram is not None:
        reading.problems += _wrong_row_counts(architecture.engram, reading.values.get(_ENGRAM_ROWS))
    return ParsedConfig(
        architecture=architecture,
        problems=tuple(reading.problems),
        unused=(unused := _unused(config, reading.used)),
        hints=tuple(_hints(unused, reading.defaulted)),
    )


class _Reading:
    """The state of one pass over the key table: values by key name, problems, and names that were read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[str] = []
        self.used: set[str] = set()
        self.defaulted: set[str] = set()
        self._sections: dict[str, Mapping[str, Any] | None] = {"": config}
        for name, required in SECTIONS.items():
            self._sections[name] = self._open(name, required)

    def _open(self, name: str, required: bool) -> Mapping[str, Any] | None:
        """An object inside the file; ``None`` when it is absent or no object, which is a problem if it is required."""
        parent_name, _, leaf = name.rpartition(".")
        parent = self._sections[parent_name]
        if parent is None:
            return None
        self.used.add(name)
        section = parent.get(leaf)
        if isinstance(section, Mapping):
            return cast(Mapping[str, Any], section)
        if section is not None or required:
            found = "absent" if leaf not in parent else f"{section!r}"
            self.problems.append(f"{name} is {found}; it must be an object{self._spelling(leaf, parent_name)}")
        return None

    def read(self, key: Key) -> None:
        """Take one key's value, or record what is wrong with it."""
        section = self._sections[key.section]
        if section is None or not self._counts(key):
            return
        leaf = key.leaf if key.leaf in section or key.alias not in section else key.alias
        self.used.update((key.name, f"{key.section}.{key.alias}".lstrip(".")))
        if key.default is not REQUIRED and section.get(leaf) is None:
            self.values[key.name] = self._default(key)
            self.defaulted.add(key.name)
            return
        if leaf not in section:
            self.problems.append(f"{key.name} is required but absent{self._spelling(key.leaf, key.section)}")
            return
        try:
            self.values[key.name] = key.rule(section[leaf])
        except Refused as refusal:
            self.problems.append(f"{key.name} is {section[leaf]!r}; {refusal}")

    def _counts(self, key: Key) -> bool:
        """Whether the model has the optional part that ``key`` belongs to."""
        match key.part:
            case "candidates":
                return self.values.get("text_config.candidate_source_layer_id") is not None
            case "rope_scaling":
                return bool(self._sections["text_config.rope_scaling"])
            case "engram":
                return bool(self.values.get("text_config.engram_layer_ids"))
            case "draft":
                return bool(self.values.get("text_config.num_nextn_predict_layers"))
            case "vision":
                return bool(self.values.get("vision_config.num_hidden_layers"))
            case _:
                return True

    def _default(self, key: Key) -> object:
        if key is INDEX_KEY_SOURCES:
            return self.values.get("text_config.kv_source_layer_ids", ())
        return key.default

    def _spelling(self, leaf: str, section_name: str) -> str:
        """A hint naming the nearest key of a section that no entry of the table claims."""
        known = {key.leaf for key in KEYS if key.section == section_name}
        return nearest(leaf, [name for name in self._sections[section_name] or {} if name not in known])

    def fields(self, record: str) -> dict[str, Any]:
        """The values that fill the fields of one record; ``""`` is the model itself."""
        return {
            key.fills.rpartition(".")[2]: self.values[key.name]
            for key in KEYS
            if key.fills and key.fills.rpartition(".")[0] == record and key.name in self.values
        }


def _build(reading: _Reading) -> ModelArchitecture:
    fields = reading.fields("")
    num_layers: int = fields["num_layers"]
    fields["compress_ratios"] = fields["compress_ratios"][:num_layers]
    scaling = reading.fields("attention.rope_scaling")
    experts = reading.fields("experts")
    draft, engram, vision = reading.fields("draft"), reading.fields("engram"), reading.fields("vision")
    candidates_off = {"candidate_blocks": 0, "candidate_block_size": 0}
    draft_experts = experts | reading.fields("draft.experts")
    longest_step = max(MAX_BACKTRACK_TOKENS, draft["block_size"] + 1) if draft["num_layers"] else MAX_BACKTRACK_TOKENS
    return ModelArchitecture(
        **fields,
        attention=AttentionArchitecture(
            **reading.fields("attention"),
            rope_scaling=RopeScaling(**scaling) if scaling else None,
            max_backtrack_tokens=longest_step,
        ),
        indexer=IndexerArchitecture(**candidates_off | reading.fields("indexer")),
        experts=ExpertArchitecture(**experts),
        hyper_connection=HyperConnectionArchitecture(**reading.fields("hyper_connection")),
        engram=EngramArchitecture(**engram) if engram["layer_ids"] else None,
        draft=DraftArchitecture(**draft, experts=ExpertArchitecture(**draft_experts)) if draft["num_layers"] else None,
        vision=VisionArchitecture(**vision) if vision["num_layers"] else None,
    )


def _wrong_row_counts(engram: EngramArchitecture, stated: Sequence[int] | None) -> list[str]:
    """Compare the table sizes that the file states, if it does, with those that follow from the primes."""
    rows = engram_rows(engram)
    if stated is None or tuple(stated) == rows:
        return []
    return [
        f"{_ENGRAM_ROWS} is {list(stated)}; the primes from engram_vocab_size {engram.prime_start} on give {list(rows)}"
        f" rows for layers {list(engram.layer_ids)}"
    ]


def _hints(unused: Sequence[str], defaulted: set[str]) -> Iterator[str]:
    """Unused keys spelt almost like an optional key that is absent from their section."""
    for name in unused:
        section, _, leaf = name.rpartition(".")
        absent = [key.rpartition(".")[2] for key in sorted(defaulted) if key.rpartition(".")[0] == section]
        if close := difflib.get_close_matches(leaf, absent, n=1, cutoff=_SURELY_MISSPELT):
            yield f"{name} is not used; did you mean {close[0]!r}?"


def _unused(config: Mapping[str, Any], used: set[str]) -> tuple[str, ...]:
    """Dotted names of all keys that nobody read; an object that nobody read counts as one."""
    names: list[str] = []
    for section in ("", *SECTIONS):
        node: Any = config
        for part in filter(None, section.split(".")):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            dotted = (f"{section}.{name}".lstrip(".") for name in cast(Mapping[str, Any], node))
            names += [name for name in dotted if name not in used]
    return tuple(names)
