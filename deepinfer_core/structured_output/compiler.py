"""Compiles what requests ask for, beside the engine's thread, each form once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING

import llguidance
import numpy as np

from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.structured_output.mask_rows import num_mask_words
from deepinfer_core.structured_output.matcher import GrammarMatcher, LlguidanceMatcher, TriggeredMatcher
from deepinfer_core.structured_output.sources import GrammarSource, grammar_source, shortened
from deepinfer_core.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    r"[1-9][0-9]*",
    *(rf"[{letters}]+" for letters in ("a-z", "a-z ", "A-Za-z", "A-Za-z ")),
    *(rf'[^"\\\x00-\x1F\x7F]{{1,{length}}}' for length in (*range(1, 11), 12, 16, 20, 30)),
    r'[^"\\\x00-\x1F\x7F]+',
]
"""Kinds of tokens: blanks, numbers, words, and what else may stand within quotes, by length. A token is of the first
kind that it fits. Where all of a kind may come, its mask is added without a look at its tokens; the library's own list
has three lengths alone. Without words the masks of ``[a-z ]+`` take three times as long, without numbers those of
numbers twice as long."""
_GRAMMAR_BYTES = 64 * 1024
_BYTES_PER_CHARACTER = 128
"""What a compiled grammar is taken to need; schemas with 3, 30 and 150 properties took 92, 313 and 960 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """What compiling and matching one grammar may cost; beyond it that request fails.

    Attributes:
        initial_fuel: Work for building the lexer.
        step_fuel: Work of the lexer for one mask.
        step_items: Items of the parser for one mask.
        lexer_states: States of the lexer, one to two KiB each.
        grammar_size: Symbols of the grammar.
    """

    initial_fuel: int = 1_000_000
    step_fuel: int = 200_000
    step_items: int = 50_000
    lexer_states: int = 50_000
    grammar_size: int = 500_000

    def native(self) -> llguidance.LLParserLimits:
        """The limits in the library's type; its messages without dumps of its state."""
        return llguidance.LLParserLimits(
            initial_lexer_fuel=self.initial_fuel,
            step_lexer_fuel=self.step_fuel,
            step_max_items=self.step_items,
            max_lexer_states=self.lexer_states,
            max_grammar_size=self.grammar_size,
            verbose_errors=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarVocabulary:
    """The tokens that grammars are matched with.

    Attributes:
        read_tokenizer: Gives the text of ``tokenizer.json``; called once, by a worker.
        vocab_size: Rows of the model's logits; ids without a token are never allowed.
        eos_token_id: The token that ends an output.
    """

    read_tokenizer: Callable[[], str]
    vocab_size: int
    eos_token_id: int

    def load(self) -> LLTokenizer:
        """The tokens in the library's form; takes a second for a large vocabulary.

        Raises:
            ConfigError: The tokenizer cannot be read.
        """
        try:
            return llguidance.LLTokenizer(
                self.read_tokenizer(), n_vocab=self.vocab_size, eos_token=self.eos_token_id, slices=_SLICES
            )
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"this tokenizer cannot be used ({error})", "structured outputs") from error


class CompiledGrammar:
    """A compiled form, shared by all requests that ask for it.

    Attributes:
        warnings: What it does not enforce, one sentence for each keyword; for the output's warnings.
        num_bytes: What it is taken to need in memory.
    """

    def __init__(self, prototype: LLMatcher, source: GrammarSource, vocabulary: GrammarVocabulary) -> None:
        self.warnings = source.warnings
        self.num_bytes = _GRAMMAR_BYTES + _BYTES_PER_CHARACTER * len(source.text)
        self._prototype = prototype
        self._vocabulary = vocabulary
        self._lock = threading.Lock()

    def matcher(self, trigger_token_ids: Sequence[int] = (), bound_token_id: int | None = None) -> GrammarMatcher:
        """A matcher at the beginning, one for each completion."""
        with self._lock:
            native = self._prototype.deep_copy()
        inner = LlguidanceMatcher(native, self._vocabulary.vocab_size, self._vocabulary.eos_token_id, id(self))
        return TriggeredMatcher(inner, trigger_token_ids, bound_token_id) if trigger_token_ids else inner


class GrammarFuture:
    """A grammar that is being compiled; after its time limit it counts as failed."""

    def __init__(
        self,
        params: StructuredOutputsParams,
        future: Future[CompiledGrammar],
        deadline: float,
        compiler: GrammarCompiler,
    ) -> None:
        self.params = params
        self._future = future
        self._deadline = deadline
        self._compiler = compiler

    def done(self) -> bool:
        """True if :meth:`result` returns or raises at once."""
        return self._future.done() or self._compiler.clock() >= self._deadline

    def result(self) -> CompiledGrammar:
        """The grammar; waits for it as long as the time limit leaves.

        Raises:
            RequestError: The request is malformed or asks for what is not enforced (with place and reason), or the
                time limit has passed.
            ConfigError: The tokenizer cannot be used.
        """
        try:
            error = self._future.exception(max(self._deadline - self._compiler.clock(), 0.0))
        except FutureTimeoutError:
            limit = f"compiling took more than {self._compiler.time_limit_s:g} s; simplify the schema or grammar"
            raise RequestError(f"structured_outputs.{self.params.kind}: {limit}") from None
        if error is None:
            return self._future.result()
        if isinstance(error, RequestError | ConfigError):
            raise error
        reason = f"the compiler failed ({type(error).__name__}: {shortened(str(error))})"
        raise RequestError(f"structured_outputs.{self.params.kind}: {reason}") from error

    def matcher(self) -> GrammarMatcher:
        """A matcher at the beginning, with the request's trigger; raises what :meth:`result` raises."""
        return self.result().matcher(self.params.trigger_token_ids, self.params.bound_token_id)


class GrammarCompiler:
    """Compiles forms in a few threads and keeps the latest.

    Args:
        vocabulary: The model's tokens.
        num_threads: Threads that compile.
        time_limit_s: Seconds from :meth:`compile` to the result; waiting for a thread counts.
        max_cached: Compiled grammars to keep at most, failures included.
        max_cached_bytes: What they may need at most, as estimated by ``CompiledGrammar.num_bytes``.
        limits: What one grammar may cost.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        *,
        num_threads: int = 2,
        time_limit_s: float = 20.0,
        max_cached: int = 256,
        max_cached_bytes: int = 256 * 1024 * 1024,
        limits: GrammarLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.time_limit_s = time_limit_s
        self.clock = clock
        self._vocabulary = vocabulary
        self._limits = limits or GrammarLimits()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="deepinfer-grammar")
        self._cache = _Cache(max_cached, max_cached_bytes)
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()

    def compile(self, params: StructuredOutputsParams) -> GrammarFuture:
        """Begin to compile; returns at once, and with a finished future if the form is known already."""
        deadline = self.clock() + self.time_limit_s
        key = params.grammar_key
        future = self._cache.get(key)
        if future is None:
            future = self._pool.submit(self._compile, params)
            self._cache.put(key, future)
        return GrammarFuture(params, future, deadline, self)

    def prepare(self) -> None:
        """Begin to load the tokens, so that the first request need not wait for them; returns at once."""
        self._pool.submit(self._loaded_tokenizer)

    def close(self) -> None:
        """Begin nothing more; what runs in a thread runs to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """In a worker. What is raised here reaches the caller through the future."""
        tokenizer = self._loaded_tokenizer()
        limits = self._limits.native()

        def validate(grammar: str) -> tuple[bool, list[str]]:
            return llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=limits)

        source = grammar_source(params, validate)
        prototype = llguidance.LLMatcher(tokenizer, source.text, log_level=0, limits=limits)
        if not prototype.is_error():
            first = np.zeros(num_mask_words(self._vocabulary.vocab_size), np.int32)
            prototype.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)  # some limits show only here
        if prototype.is_error():
            raise RequestError(f"structured_outputs.{params.kind}: {shortened(prototype.get_error())}")
        return CompiledGrammar(prototype, source, self._vocabulary)

    def _loaded_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = self._vocabulary.load()
            return self._tokenizer


class _Cache:
    """The latest forms, by what they depend on; those in work and those that failed count too."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, ...], Future[CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, ...]) -> Future[CompiledGrammar] | None:
        with self._lock:
            future = self._entries.get(key)
            if future is None or future.cancelled():
                return None
            self._entries.move_to_end(key)
            return future

    def put(self, key: tuple[str, ...], future: Future[CompiledGrammar]) -> None:
        with self._lock:
            self._entries[key] = future
            self._entries.move_to_end(key)
            sizes = {kept: self._size(kept, entry) for kept, entry in self._entries.items()}
            total = sum(sizes.values())
            while len(self._entries) > 1 and (len(self._entries) > self._max_entries or total > self._max_bytes):
                oldest, _ = self._entries.popitem(last=False)
                total -= sizes[oldest]

    @staticmethod
    def _size(key: tuple[str, ...], future: Future[CompiledGrammar]) -> int:
        if future.done() and not future.cancelled() and future.exception() is None:
            return future.result().num_bytes
        return sum(len(part) for part in key)
