"""Requests that wait until the grammar of their output is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.errors import DeepInferError, RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.reporter import Reporter
    from deepinfer_core.engine.request import Request
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.outputs import FinishReason
    from deepinfer_core.structured_output.compiler import GrammarCompiler, GrammarFuture


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A request and its grammar."""

    request: Request
    future: GrammarFuture
    since: float


class Grammars:
    """Compiles grammars beside the engine, and hands requests on when theirs is ready.

    The compiler and its library are loaded with the first request that asks for structured output.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, *, vocab_size: int, eos_token_id: int, clock: Callable[[], float]
    ) -> None:
        self._tokenizer = tokenizer
        self._sizes = vocab_size, eos_token_id
        self._clock = clock
        self._compiler: GrammarCompiler | None = None
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def start(self, request: Request) -> None:
        """Begin to compile what a request asks for; it waits here until then.

        Raises:
            RequestError: The model has no tokenizer, or the library is not installed.
        """
        params = request.params.structured_outputs
        if params is not None:
            future = self._loaded_compiler().compile(params)
            self._waiting[request.request_id] = _Waiting(request=request, future=future, since=self._clock())

    def abort(self, request_id: str) -> bool:
        """End a request that waits here; False when it does not."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            _finish(waiting.request, "abort")
        return waiting is not None

    def drop(self, request_id: str) -> None:
        """Let a request go that nobody wants any more."""
        self._waiting.pop(request_id, None)

    def take(self, now: float, schedule: Callable[[Request], None], reporter: Reporter) -> list[str]:
        """Hand on the requests whose grammar is there; end those for which there is none, or no time.

        Args:
            now: The time.
            schedule: Queues a request; what it raises ends the request.
            reporter: Is told of grammars that failed.

        Returns:
            Ids of the requests that ended; their completions say why.
        """
        ended: list[str] = []
        for request_id, waiting in list(self._waiting.items()):
            request = waiting.request
            if request.sequences[0].deadline <= now:
                _finish(request, "timeout")
            elif waiting.future.done():
                error = _hand_on(waiting, now, schedule)
                if not error:
                    del self._waiting[request_id]
                    continue
                reporter.event("grammar_failed")
                for completion in request.completions:
                    completion.fail(error)
            else:
                continue
            del self._waiting[request_id]
            ended.append(request_id)
        return ended

    def close(self) -> None:
        """Begin nothing more."""
        if self._compiler is not None:
            self._compiler.close()

    def _loaded_compiler(self) -> GrammarCompiler:
        if self._compiler is None:
            self._compiler = self._load()
        return self._compiler

    def _load(self) -> GrammarCompiler:
        tokenizer, (vocab_size, eos_token_id) = self._tokenizer, self._sizes
        if tokenizer is None:
            raise RequestError("structured_outputs needs a tokenizer, and this model has none; use one that has")
        try:
            from deepinfer_core.structured_output.compiler import GrammarCompiler, GrammarVocabulary
        except ImportError as error:
            raise RequestError(f"structured_outputs needs llguidance ({error}); pip install llguidance") from error
        vocabulary = GrammarVocabulary(
            read_tokenizer=lambda: tokenizer.path.read_text(encoding="utf-8"),
            vocab_size=vocab_size,
            eos_token_id=eos_token_id,
        )
        return GrammarCompiler(vocabulary, clock=self._clock)


def _finish(request: Request, reason: FinishReason) -> None:
    for completion in request.completions:
        completion.finish(reason)


def _hand_on(waiting: _Waiting, now: float, schedule: Callable[[Request], None]) -> str:
    """Give every completion its matcher and queue the request; returns what went wrong, or nothing."""
    request = waiting.request
    try:
        request.warnings += waiting.future.result().warnings
        for completion in request.completions:
            completion.constrain(waiting.future.matcher())
        request.grammar_compile_s = now - waiting.since
        schedule(request)
    except DeepInferError as error:
        return str(error)
    return ""
