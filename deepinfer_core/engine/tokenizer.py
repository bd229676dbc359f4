"""The tokenizer of a checkpoint: text to token ids and back, checked against the architecture when loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.engine.byte_level import bytes_of_spelling
from deepinfer_core.errors import CheckpointError, RequestError
from deepinfer_core.logging import get_logger

if TYPE_CHECKING:
    import tokenizers

_logger = get_logger(__name__)

RELEASED_SPECIALS = {
    "bos": (0, "<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
    "eos": (1, "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "pad": (2, "<\uff5c\u2581pad\u2581\uff5c>"),
}
"""Id and spelling of the tokens that the ``release`` policy insists on (spec model/10 section 6)."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A byte-level tokenizer that belongs to a model.

    Attributes:
        backing: The library's object; its own truncation, padding and post-processing are not used.
        path: The ``tokenizer.json`` that was read.
        vocab_size: Rows of the model's embedding; ids from here on cannot be run.
        bos_id: Starts a prompt.
        eos_id: Ends a turn.
        pad_id: Never part of a sequence.
        inserts_bos: A plain text gets ``bos_id`` in front unless it already begins with it.
    """

    backing: tokenizers.Tokenizer
    path: Path
    vocab_size: int
    bos_id: int
    eos_id: int
    pad_id: int
    inserts_bos: bool

    def encode(self, text: str, *, recognize_special: bool = True) -> list[int]:
        """Token ids of a text; empty for an empty text unless the tokenizer inserts the start token.

        Args:
            text: Any text.
            recognize_special: Spellings of special and added tokens become those tokens; otherwise they are
                ordinary text, so text from a stranger cannot forge a turn of a conversation.

        Raises:
            RequestError: The text holds half a surrogate pair, which no encoding of text can carry.
        """
        encoder = self.backing if recognize_special else self._without_added_tokens
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"character {error.start} is half a surrogate pair ({text[error.start]!a})"
            raise RequestError(f"prompt: {half}; send well-formed text") from error
        ids = encoder.encode(text, add_special_tokens=False).ids
        return [self.bos_id, *ids] if self.inserts_bos and ids[:1] != [self.bos_id] else ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; bytes that form no character give U+FFFD, ids without a token give nothing."""
        return self.backing.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text; none for an id without a token."""
        known = self._bytes_by_id.get(token_id)
        if known is None:
            spelling = self.backing.id_to_token(token_id)
            known = self._bytes_by_id[token_id] = bytes_of_spelling(spelling) if spelling else b""
        return known

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, special ones spelt out; U+FFFD where it is part of a character."""
        known = self._text_by_id.get(token_id)
        if known is None:
            known = self._text_by_id[token_id] = self.decode([token_id], skip_special_tokens=False)
        return known

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that ``skip_special_tokens`` leaves out of the text."""
        return self._special_ids

    @cached_property
    def _bytes_by_id(self) -> dict[int, bytes]:
        """Of the tokens that were asked for: every generated token asks."""
        return {}

    @cached_property
    def _text_by_id(self) -> dict[int, str]:
        """Likewise: every alternative of every generated token may ask."""
        return {}

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(i for i, token in self.backing.get_added_tokens_decoder().items() if token.special)

    def check_token_ids(self, token_ids: Sequence[int]) -> None:
        """Refuse a prompt that cannot be run.

        Raises:
            RequestError: It has no tokens, or some are not ids of this model; names the first few.
        """
        if not token_ids:
            raise RequestError("prompt: it has no tokens; give some text or at least one token id")
        wrong = [(at, i) for at, i in enumerate(token_ids) if not _is_id(i, self.vocab_size)]
        if wrong:
            listed = ", ".join(f"{i!r} at position {at}" for at, i in wrong[:5])
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            allowed = f"ids of this model are whole numbers from 0 to {self.vocab_size - 1}"
            raise RequestError(f"prompt: token ids {listed}{more} are not allowed; {allowed}")

    @cached_property
    def _without_added_tokens(self) -> tokenizers.Tokenizer:
        description = json.loads(self.backing.to_str())
        description["added_tokens"] = []
        return type(self.backing).from_str(json.dumps(description))


def load_tokenizer(folder: Path, architecture: ModelArchitecture) -> Tokenizer:
    """Read ``tokenizer.json`` (and ``tokenizer_config.json`` if there) of a checkpoint.

    With ``tokenizer_compatibility`` ``release`` the start, end and pad token must be ids 0, 1 and 2 in the released
    spelling, a pad id that repeats the end token is repaired, and plain text gets the start token. With ``native``
    the files count as they are. The 21 span tokens that the released engine adds for images lie outside the
    vocabulary and are not registered, because the vision part is not run.

    Raises:
        CheckpointError: A file is missing or broken, or does not fit the architecture; lists every problem.
    """
    path = folder / "tokenizer.json"
    backing = _read(path)
    settings = _read_settings(folder / "tokenizer_config.json")
    is_release = architecture.tokenizer_compatibility == "release"
    problems = _structure_problems(backing, architecture.vocab_size)
    problems += (
        _release_problems(backing, architecture) if is_release else _native_problems(backing, settings, architecture)
    )
    if settings.get("add_eos_token"):
        problems.append("tokenizer_config.json sets add_eos_token, which would end every prompt; set it to false")
    if problems:
        raise CheckpointError(problems, str(folder))
    unnamed = architecture.vocab_size - backing.get_vocab_size(with_added_tokens=True)
    if unnamed:
        message = "%s: %d of the model's %d token ids have no token; where one is generated it adds no text"
        _logger.warning(message, path, unnamed, architecture.vocab_size)
    return Tokenizer(
        backing=backing,
        path=path,
        vocab_size=architecture.vocab_size,
        bos_id=architecture.bos_token_id,
        eos_id=architecture.eos_token_id,
        pad_id=RELEASED_SPECIALS["pad"][0] if is_release else architecture.pad_token_id,
        inserts_bos=is_release or bool(settings.get("add_bos_token")),
    )


def _read(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing; put the checkpoint's own tokenizer there", str(path.parent))
    try:
        backing = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path.name} cannot be read ({error}); fetch it again", str(path.parent)) from error
    backing.no_truncation()
    backing.no_padding()
    return backing


def _read_settings(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} is no JSON ({error}); fetch it again", str(path.parent)) from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path.name} is no JSON object; fetch it again", str(path.parent))
    return settings


def _structure_problems(backing: tokenizers.Tokenizer, vocab_size: int) -> list[str]:
    from tokenizers import decoders

    problems: list[str] = []
    largest = max(backing.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        advice = "use the tokenizer files of this checkpoint"
        problems.append(f"tokenizer.json has ids up to {largest} but vocab_size is {vocab_size}; {advice}")
    if not isinstance(backing.decoder, decoders.ByteLevel):
        found = type(backing.decoder).__name__ if backing.decoder else "no"
        problems.append(f"tokenizer.json has {found} decoder; the format uses a ByteLevel one")
    return problems


def _release_problems(backing: tokenizers.Tokenizer, architecture: ModelArchitecture) -> list[str]:
    problems: list[str] = []
    for role, (needed, spelling) in RELEASED_SPECIALS.items():
        if backing.token_to_id(spelling) != needed:
            has = _has_id(backing, spelling)
            problems.append(f"the {role} token {spelling} {has} in tokenizer.json; the release needs id {needed}")
    configured = (architecture.bos_token_id, architecture.eos_token_id, architecture.pad_token_id)
    for (role, (needed, _)), given in zip(RELEASED_SPECIALS.items(), configured, strict=True):
        repeats_end = role == "pad" and given == architecture.eos_token_id
        if given != needed and not repeats_end:
            advice = "set tokenizer_compatibility to 'native' to keep it"
            problems.append(f"{role}_token_id is {given} in config.json; the release needs {needed} ({advice})")
    return problems


def _native_problems(
    backing: tokenizers.Tokenizer, settings: Mapping[str, Any], architecture: ModelArchitecture
) -> list[str]:
    """Start and end token must be the same in both files; a pad that stands for another token does no harm."""
    problems: list[str] = []
    for role, given in (("bos", architecture.bos_token_id), ("eos", architecture.eos_token_id)):
        declared = settings.get(f"{role}_token")
        spelling = declared.get("content") if isinstance(declared, Mapping) else declared
        if spelling is not None and backing.token_to_id(spelling) != given:
            named = f"tokenizer_config.json names {spelling}, which {_has_id(backing, spelling)}"
            problems.append(f"{role}_token_id is {given} in config.json but {named}; make the two agree")
    return problems


def _has_id(backing: tokenizers.Tokenizer, spelling: str) -> str:
    found = backing.token_to_id(spelling)
    return "has no id" if found is None else f"has id {found}"


def _is_id(value: object, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
