"""The byte-level alphabet: how raw spellings of tokens stand for bytes.

Every byte has one printable character; bytes that are not printable themselves take characters from U+0100 on
(the alphabet of GPT-2, used by the released tokenizer).
"""

from __future__ import annotations

from functools import cache
from itertools import chain, count


def bytes_of_spelling(spelling: str) -> bytes:
    """The bytes that a raw spelling stands for.

    A spelling with a character outside the alphabet (many special tokens) is plain text and stands for its own UTF-8.
    """
    alphabet = _bytes_by_character()
    try:
        return bytes(alphabet[character] for character in spelling)
    except KeyError:
        return spelling.encode()


@cache
def _bytes_by_character() -> dict[str, int]:
    printable = set(chain(range(ord("!"), ord("~") + 1), range(0xA1, 0xAD), range(0xAE, 0x100)))
    substitutes = count(0x100)
    return {chr(byte if byte in printable else next(substitutes)): byte for byte in range(256)}
