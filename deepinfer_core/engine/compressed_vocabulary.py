"""Fold the vocabulary for the n-gram memory: tokens that read alike share an id (spec model/06 section 1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers

NO_COMPRESSED_ID = -1
"""Stands for tokens outside the text vocabulary, such as an image's."""

_REPLACEMENT_CHARACTER = "\ufffd"
_LONE_SPACE = "\ue000"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedVocabulary:
    """The folding of one tokenizer.

    Attributes:
        map: Compressed id of every token id of the tokenizer.
        size: Number of distinct compressed ids.
    """

    map: tuple[int, ...]
    size: int

    def compress(self, token_ids: Iterable[int]) -> list[int]:
        """Compressed ids; -1 for ids outside the tokenizer."""
        known = len(self.map)
        return [self.map[i] if 0 <= i < known else NO_COMPRESSED_ID for i in token_ids]

    def table(self, vocab_size: int) -> tuple[int, ...]:
        """``map`` with ``vocab_size`` entries, for look-ups on the device; -1 where the tokenizer has no token."""
        return self.map[:vocab_size] + (NO_COMPRESSED_ID,) * (vocab_size - len(self.map))


def compress_vocabulary(tokenizer: tokenizers.Tokenizer) -> CompressedVocabulary:
    """Number the folded spellings of all tokens, added ones included, in order of first appearance.

    A token that is no whole text on its own (part of a character) keeps its raw spelling.
    """
    fold = _fold()
    numbers: dict[str, int] = {}
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    texts = tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)
    compressed = [
        numbers.setdefault(_key(tokenizer, fold, i, text), len(numbers)) for i, text in zip(ids, texts, strict=True)
    ]
    return CompressedVocabulary(map=tuple(compressed), size=len(numbers))


def check_compressed_size(vocabulary: CompressedVocabulary, expected: int, source: str) -> None:
    """Refuse a tokenizer that folds to another number of ids than the checkpoint was trained with.

    The number enters the hash multipliers: with another one every table row would be a wrong one.

    Args:
        vocabulary: Of the tokenizer that serves.
        expected: ``engram_compressed_vocab_size`` of the config.
        source: The checkpoint, for the message.

    Raises:
        CheckpointError: The numbers differ.
    """
    if vocabulary.size != expected:
        raise CheckpointError(
            f"the tokenizer folds to {vocabulary.size} compressed ids but engram_compressed_vocab_size is {expected}; "
            "use the tokenizer files that belong to this checkpoint",
            source,
        )


def _key(tokenizer: tokenizers.Tokenizer, fold: normalizers.Normalizer, token_id: int, text: str) -> str:
    if _REPLACEMENT_CHARACTER in text:
        return tokenizer.id_to_token(token_id) or text
    return fold.normalize_str(text) or text


def _fold() -> normalizers.Normalizer:
    """Case, accents, width and blank space are dropped; a lone space survives the stripping."""
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex("^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
