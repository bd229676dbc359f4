"""The asynchronous API: many callers of one model, each with a stream of its own."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from deepinfer_core.engine.engine_thread import EngineThread
from deepinfer_core.engine.session import open_session
from deepinfer_core.errors import RequestError
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.engine.chat import Message
    from deepinfer_core.engine.engine import Engine
    from deepinfer_core.engine.prompts import EncodedPrompt, Prompt
    from deepinfer_core.engine.session import Session
    from deepinfer_core.engine.statistics import EngineStatistics
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.outputs import RequestOutput


class AsyncLLM:
    """A model that serves any number of coroutines at once; the engine runs in a thread of its own.

    Example:
        >>> import asyncio
        >>> from deepinfer_core import AsyncLLM, SamplingParams
        >>> async def main():
        ...     async with AsyncLLM("tiny", accelerator="cpu") as llm:
        ...         question = [{"role": "user", "content": "Compute 60 + 15."}]
        ...         async for output in llm.chat(question, SamplingParams(temperature=0)):
        ...             print(output.outputs[0].text)
        >>> asyncio.run(main())
        7
        75
        75
    """

    def __init__(self, model: str, **settings: Any) -> None:
        """Open a model; this blocks while weights are read.

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
        self._thread = EngineThread(session.engine)
        weakref.finalize(self, self._thread.stop)  # for who forgets to close: the thread must not outlive the program
        self._numbers = count()

    @property
    def binding_report(self) -> BindingReport:
        """Which ops run natively, as steps, or by the reference."""
        return self._opened.opened.model.report

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises:
            RequestError: The model was made from a config alone.
        """
        return self._opened.prompts.tokenizer

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt: ``async for output in llm.generate(...)`` gives records as they come.

        Leaving the loop, or cancelling the task that runs it, aborts the request.

        Args:
            prompt: A text as it is, special tokens recognised, or ``{"prompt_token_ids": [...]}``.
            sampling_params: How to sample; ``output_kind`` says what the records hold.
            request_id: Unique among the unfinished requests; one is made up without.
            priority: Lower values are served first.
            timeout_s: Seconds after which it ends with what it has (``finish_reason`` ``timeout``).

        Returns:
            Records of this request; the last one has ``finished`` set, and ``finish_reason`` ``error`` if it failed.

        Raises:
            RequestError: The prompt or its parameters cannot be served, or the model is closed.
            InternalError: The engine broke.
        """
        encode = partial(self._opened.prompts.encode_prompt, prompt)
        return self._run(encode, sampling_params, request_id, priority, timeout_s)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation; everything else as in :meth:`generate`.

        Args:
            messages: OpenAI-style messages.
            sampling_params: As in :meth:`generate`.
            request_id: As in :meth:`generate`.
            priority: As in :meth:`generate`.
            timeout_s: As in :meth:`generate`.
            **options: As in :meth:`deepinfer_core.LLM.chat`.

        Returns:
            As :meth:`generate`.

        Raises:
            RequestError: As :meth:`generate`.
        """
        given: Mapping[str, Any] = options
        encode = partial(self._opened.prompts.encode_chat, messages, given)
        return self._run(encode, sampling_params, request_id, priority, timeout_s)

    async def abort(self, request_id: str) -> None:
        """End a request; its reader gets the last record. Unknown ids are ignored: it may just have ended."""
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.abort(request_id)))

    async def statistics(self) -> EngineStatistics:
        """Sequences that wait and run, tokens generated, preemptions, errors, free memory."""
        return await asyncio.wrap_future(self._thread.call(lambda engine: engine.statistics()))

    async def close(self) -> None:
        """Abort what runs, tell the readers, give memory back. More calls do nothing, other calls are refused."""
        await asyncio.to_thread(self._thread.stop)
        self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise RequestError("this AsyncLLM is closed; open the model again")
        return self._session

    async def _run(
        self,
        encode: Callable[[], EncodedPrompt],
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        timeout_s: float | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt = await asyncio.to_thread(encode)
        name = f"request-{next(self._numbers)}" if request_id is None else request_id
        inbox = _Inbox(self._thread, name)

        def add(engine: Engine) -> None:
            engine.add(
                name,
                prompt.token_ids,
                SamplingParams() if params is None else params,
                prompt=prompt.text,
                priority=priority,
                timeout_s=timeout_s,
            )

        try:
            await asyncio.wrap_future(self._thread.add(name, add, inbox.put))
            while True:
                output = await inbox.get()
                yield output
                if output.finished:
                    return
        finally:
            self._thread.discard(name, inbox.put)


class _Inbox:
    """Carries the records of one request from the engine's thread to the event loop of its reader."""

    def __init__(self, thread: EngineThread, request_id: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._records: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()
        self._thread = thread
        self._request_id = request_id

    async def get(self) -> RequestOutput:
        record = await self._records.get()
        if isinstance(record, Exception):
            raise record
        return record

    def put(self, record: RequestOutput | Exception) -> None:
        """Take a record, in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._records.put_nowait, record)
        except RuntimeError:  # the loop is closed: the reader is gone for good
            self._thread.discard(self._request_id, self.put)
