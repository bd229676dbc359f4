"""The offline API: one object per model, batches of prompts in, results in order out."""

from __future__ import annotations

import dataclasses
import reprlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from deepinfer_core.engine.session import open_session
from deepinfer_core.errors import RequestError
from deepinfer_core.outputs import CompletionOutput, RequestOutput
from deepinfer_core.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.engine.chat import Message
    from deepinfer_core.engine.engine import Engine
    from deepinfer_core.engine.prompts import EncodedPrompt, Prompt
    from deepinfer_core.engine.session import Session
    from deepinfer_core.engine.statistics import EngineStatistics
    from deepinfer_core.engine.tokenizer import Tokenizer

OnInvalid = Literal["raise", "return"]
"""What becomes of requests that cannot be served: one error before anything runs, or an error record for each."""


class LLM:
    """A model ready to generate. Not safe for threads; for many callers at once see ``AsyncLLM``.

    Example:
        >>> from deepinfer_core import LLM, SamplingParams
        >>> llm = LLM(model="tiny", accelerator="cpu")
        >>> question = [{"role": "user", "content": "Compute 60 + 15."}]
        >>> llm.chat(question, SamplingParams(temperature=0))[0].outputs[0].text
        '75'
    """

    def __init__(self, model: str, **settings: Any) -> None:
        """Open a model.

        Args:
            model: A folder, a hub id, or the word ``tiny``.
            **settings: Fields of :class:`~deepinfer_core.config.engine.EngineConfig`; ``fallback`` may be its name.

        Raises:
            DeepInferError: Anything wrong with settings, checkpoint or machine, in words.
        """
        session = open_session(model, settings)
        self.settings = session.settings
        self.config = session.settings.config
        self._session: Session | None = session
        self._numbers = count()
        self._mail: dict[str, deque[RequestOutput]] = {}

    @property
    def binding_report(self) -> BindingReport:
        """Which ops run natively, as steps, or by the reference."""
        return self._opened.opened.model.report

    @property
    def llm_engine(self) -> Engine:
        """The engine, for who adds requests and makes steps himself; no other call may run meanwhile."""
        return self._engine

    def statistics(self) -> EngineStatistics:
        """Sequences that wait and run, tokens generated, preemptions, errors, free memory."""
        return self._engine.statistics()

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises:
            RequestError: The model was made from a config alone.
        """
        return self._opened.prompts.tokenizer

    def encode(self, text: str, *, recognize_special: bool = True) -> list[int]:
        """Token ids of a text; the spelling of a special token is that token unless ``recognize_special`` is off."""
        return self._opened.prompts.encode(text, recognize_special=recognize_special)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids, special tokens left out unless ``skip_special_tokens`` is off."""
        return self._opened.prompts.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Token ids of a conversation's prompt; options as in :meth:`chat`."""
        return list(self._opened.prompts.encode_chat(messages, options).token_ids)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        on_invalid: OnInvalid = "raise",
        priority: int | Sequence[int] = 0,
        timeout_s: float | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; results come in the order of the prompts.

        Texts are taken as they are, special tokens recognised; for conversations use :meth:`chat`. An interrupt
        (Ctrl-C) aborts all of them and leaves the model ready for the next call.

        Args:
            prompts: One or several.
            sampling_params: One for all, or one per prompt; vLLM's defaults (16 tokens) without.
            use_tqdm: Show progress on a terminal.
            on_invalid: ``raise`` refuses all when some cannot be served; ``return`` runs the others, and the ones that
                cannot be served come back in their places as finished records with ``finish_reason`` ``error``.
            priority: One for all, or one per prompt; lower ones are served first.
            timeout_s: Seconds after which a request ends with what it has (``finish_reason`` ``timeout``).

        Raises:
            RequestError: Some prompts or parameters cannot be served; all problems are listed and nothing has run.
        """
        encode = self._opened.prompts.encode_prompt
        listed = [prompts] if isinstance(prompts, str | Mapping) else _listed("prompts", prompts)
        batch = _Batch([partial(encode, prompt) for prompt in listed], sampling_params, priority, timeout_s)
        return self._complete(batch, on_invalid, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        on_invalid: OnInvalid = "raise",
        priority: int | Sequence[int] = 0,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: OpenAI-style messages of one conversation, or a list of conversations.
            sampling_params: As in :meth:`generate`.
            use_tqdm: As in :meth:`generate`.
            on_invalid: As in :meth:`generate`.
            priority: As in :meth:`generate`.
            timeout_s: As in :meth:`generate`.
            **options: ``reasoning_effort``, ``tools``, ``tool_choice``, ``continue_final_message``
                (:class:`~deepinfer_core.engine.chat.ChatRequest`).

        Raises:
            RequestError: As in :meth:`generate`.
        """
        encode: Callable[..., EncodedPrompt] = self._opened.prompts.encode_chat
        given = _listed("messages", messages)
        conversations = [given] if not given or isinstance(given[0], Mapping) else given
        encoders = [partial(encode, conversation, options) for conversation in conversations]
        batch = _Batch(encoders, sampling_params, priority, timeout_s)
        return self._complete(batch, on_invalid, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding a record after each token; leaving the loop early aborts the request.

        Several streams may be open at once: whichever is read runs all of them.

        Args:
            prompt: What to complete.
            sampling_params: How; ``output_kind`` says what the records hold.
            priority: As in :meth:`generate`.
            timeout_s: As in :meth:`generate`.

        Raises:
            RequestError: The prompt or its parameters cannot be served.
        """
        job = _Job(self._opened.prompts.encode_prompt(prompt), sampling_params or SamplingParams(), priority, timeout_s)
        self._engine.check(job.prompt.token_ids, job.params, priority=priority, timeout_s=timeout_s)
        return self._read({str(next(self._numbers)): job})

    def close(self) -> None:
        """Abort what runs and give memory back; open streams end. More calls do nothing, other calls are refused."""
        if self._session is not None:
            self._deliver(self._session.engine.close())
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise RequestError("this LLM is closed; open the model again")
        return self._session

    @property
    def _engine(self) -> Engine:
        return self._opened.engine

    def _complete(self, batch: _Batch, on_invalid: OnInvalid, *, use_tqdm: bool) -> list[RequestOutput]:
        if on_invalid not in ("raise", "return"):
            raise RequestError(f"on_invalid={on_invalid!r} must be 'raise' or 'return'")
        jobs: dict[str, _Job] = {}
        refused: dict[str, RequestError] = {}
        order = [str(next(self._numbers)) for _ in batch.encoders]
        for request_id, job in zip(order, batch.jobs(), strict=True):
            try:
                jobs[request_id] = self._checked(*job)
            except RequestError as error:
                refused[request_id] = error
        if refused and on_invalid == "raise":
            raise RequestError(_described(refused, order))
        finished = {request_id: _refusal(request_id, error) for request_id, error in refused.items()}
        with closing(self._read(jobs)) as outputs:
            for output in _with_progress(outputs, len(jobs), use_tqdm=use_tqdm):
                finished[output.request_id] = output
        return [finished[request_id] for request_id in order]

    def _checked(
        self, encode: Callable[[], EncodedPrompt], params: SamplingParams, priority: int, timeout_s: float | None
    ) -> _Job:
        prompt = encode()
        self._engine.check(prompt.token_ids, params, priority=priority, timeout_s=timeout_s)
        return _Job(prompt, params, priority, timeout_s)

    def _read(self, jobs: Mapping[str, _Job]) -> Generator[RequestOutput, None, None]:
        """Run requests and yield their records; whatever ends this ends them."""
        engine, mail = self._engine, deque[RequestOutput]()
        self._mail.update(dict.fromkeys(jobs, mail))
        num_unfinished = len(jobs)
        try:
            for request_id, (prompt, params, priority, timeout_s) in jobs.items():
                engine.add(
                    request_id, prompt.token_ids, params, prompt=prompt.text, priority=priority, timeout_s=timeout_s
                )
            while num_unfinished:
                if mail:
                    output = mail.popleft()
                    num_unfinished -= output.finished
                    yield output
                else:
                    self._deliver(engine.step())
        finally:
            for request_id in jobs:
                self._mail.pop(request_id, None)
            engine.discard(jobs)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Put records where their reader finds them: a step also runs requests of other streams."""
        for output in outputs:
            self._mail[output.request_id].append(output)


class _Job(NamedTuple):
    """A request that was checked."""

    prompt: EncodedPrompt
    params: SamplingParams
    priority: int
    timeout_s: float | None


class _Batch(NamedTuple):
    """What one call asks: how each prompt is made, and the rest for all or one per prompt."""

    encoders: Sequence[Callable[[], EncodedPrompt]]
    params: SamplingParams | Sequence[SamplingParams] | None
    priority: int | Sequence[int]
    timeout_s: float | None

    def jobs(self) -> Iterator[tuple[Callable[[], EncodedPrompt], SamplingParams, int, float | None]]:
        """One for each prompt, not checked yet."""
        given = SamplingParams() if self.params is None else self.params
        params = [_final(one) for one in given] if isinstance(given, Sequence) else _final(given)
        spread = _spread("sampling_params", params, len(self.encoders))
        priorities = _spread("priority", self.priority, len(self.encoders))
        for encode, one, priority in zip(self.encoders, spread, priorities, strict=True):
            yield encode, one, priority, self.timeout_s


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise RequestError(f"{name} is {reprlib.repr(given)}; give a list")
    return list(given)


def _final(params: Any) -> Any:
    """The same parameters without records before the last; what is no such thing is refused with its request."""
    if not isinstance(params, SamplingParams):
        return params
    return dataclasses.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)


def _spread(name: str, given: Any, number: int) -> list[Any]:
    """One value for all, or a list with one for each."""
    if not isinstance(given, Sequence):
        return [given] * number
    if len(given) != number:
        raise RequestError(f"there are {number} prompts but {len(given)} {name}; give one for all or one per prompt")
    return list(given)


def _described(refused: Mapping[str, RequestError], order: Sequence[str]) -> str:
    """One message that names every request that cannot be served."""
    if len(order) == 1:
        return str(refused[order[0]])
    return "\n".join(f"request {order.index(request_id)}: {error}" for request_id, error in refused.items())


def _refusal(request_id: str, error: RequestError) -> RequestOutput:
    """The one record of a request that never ran."""
    failed = CompletionOutput(index=0, text="", token_ids=(), finish_reason="error", error=str(error))
    return RequestOutput(request_id=request_id, prompt=None, prompt_token_ids=(), outputs=(failed,), finished=True)


def _with_progress(outputs: Iterator[RequestOutput], total: int, *, use_tqdm: bool) -> Iterator[RequestOutput]:
    from tqdm import tqdm

    tokens = 0
    with tqdm(total=total, desc="requests", disable=None if use_tqdm else True, dynamic_ncols=True) as bar:
        for output in outputs:
            tokens += sum(len(completion.token_ids) for completion in output.outputs)
            seconds = max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(f"{tokens / seconds:.1f} tokens/s", refresh=False)
            bar.update()
            yield output
