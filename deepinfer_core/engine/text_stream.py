"""Text of a sequence as its tokens arrive, never half a character."""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """What a stream asks of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are not text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text."""
        ...


class TextStream:
    """Decodes one sequence token by token.

    The pieces joined, with :meth:`finish` at the end, equal the decoding of all tokens at once. Bytes of a character
    that is not complete are held back; bytes that can no longer become a character give U+FFFD, as in one-shot
    decoding. The cost of a token does not depend on how many came before.
    """

    __slots__ = ("_decoder", "_skipped_ids", "_tokenizer")

    def __init__(self, tokenizer: TokenBytes, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that it completes, often its own, sometimes none."""
        if token_id in self._skipped_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """The sequence has ended: returns U+FFFD for bytes still held back, else nothing; ready for a new sequence."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
