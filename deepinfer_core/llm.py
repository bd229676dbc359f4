"""The offline API: one object per model, batches of prompts in, results in order out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from deepinfer_core.config import env
from deepinfer_core.config.settings import resolve
from deepinfer_core.engine.chat import ChatRequest, load_chat_encoder
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import open_model
from deepinfer_core.errors import RequestError
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.engine.chat import Message
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.outputs import RequestOutput

Prompt = str | Mapping[str, Any]
"""A text, or ``{"prompt": text}``, or ``{"prompt_token_ids": [...]}``."""


class LLM:
    """A model ready to generate.

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
        self.settings = resolve({"model": model, **settings}, env.read())
        self.config = self.settings.config
        opened = open_model(
            self.config.model,
            accelerator=self.config.accelerator,
            numerics=self.config.numerics,
            policy=self.config.fallback,
            download_dir=self.config.download_dir,
            load_format=self.config.load_format,
            max_model_len=self.config.max_model_len,
        )
        self._opened = opened
        self._engine = Engine(opened, self.config)
        self._numbers = count()

    @property
    def binding_report(self) -> BindingReport:
        """Which ops run natively, as steps, or by the reference."""
        return self._opened.model.report

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises:
            RequestError: The model was made from a config alone.
        """
        if self._opened.tokenizer is None:
            raise RequestError("this model has no tokenizer (load_format dummy); give prompts as prompt_token_ids")
        return self._opened.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts; results come in the order of the prompts.

        Texts are taken as they are, special tokens recognised; for conversations use :meth:`chat`.

        Args:
            prompts: One or several.
            sampling_params: One for all, or one per prompt; vLLM's defaults (16 tokens) without.
            use_tqdm: Show progress on a terminal.

        Raises:
            RequestError: Some prompts or parameters cannot be served; all problems are listed and nothing has run.
        """
        listed = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        encoded = [self._encode(prompt, number) for number, prompt in enumerate(listed)]
        return self._run(encoded, _spread(sampling_params, len(listed)), use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: OpenAI-style messages of one conversation, or a list of conversations.
            sampling_params: As in :meth:`generate`.
            use_tqdm: As in :meth:`generate`.
            **options: ``reasoning_effort``, ``tools``, ``tool_choice``, ``continue_final_message``
                (:class:`~deepinfer_core.engine.chat.ChatRequest`).

        Raises:
            RequestError: As in :meth:`generate`.
        """
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else list(messages)
        encoded = [self.encode_chat(conversation, **options) for conversation in conversations]  # type: ignore[arg-type]  # told apart above
        return self._run([(None, ids) for ids in encoded], _spread(sampling_params, len(encoded)), use_tqdm=use_tqdm)

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Token ids of a conversation's prompt; options as in :meth:`chat`."""
        encoder = load_chat_encoder(self.get_tokenizer())
        return encoder.encode(ChatRequest(messages=messages, **options))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding a record after each token; leaving the loop early aborts the request."""
        text, ids = self._encode(prompt, 0)
        request_id = str(next(self._numbers))
        self._engine.add(request_id, ids, sampling_params or SamplingParams(), prompt=text)
        try:
            for output in self._engine.run():
                if output.request_id == request_id:
                    yield output
        finally:
            self._engine.abort(request_id)

    def close(self) -> None:
        """Abort what runs and give memory back."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self, prompts: Sequence[tuple[str | None, list[int]]], params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        self._check(prompts, params)
        order = [str(next(self._numbers)) for _ in prompts]
        for request_id, (text, ids), one in zip(order, prompts, params, strict=True):
            self._engine.add(request_id, ids, one, prompt=text)
        try:
            finished = {
                output.request_id: output for output in self._progress(len(order), use_tqdm=use_tqdm) if output.finished
            }
        except BaseException:
            for request_id in order:
                self._engine.abort(request_id)
            raise
        return [finished[request_id] for request_id in order]

    def _check(self, prompts: Sequence[tuple[str | None, list[int]]], params: Sequence[SamplingParams]) -> None:
        """Raise one error that names every request that cannot be served."""
        problems: list[str] = []
        for number, ((_, ids), one) in enumerate(zip(prompts, params, strict=True)):
            try:
                self._engine.check(ids, one)
            except RequestError as error:
                problems.append(f"request {number}: {error}" if len(prompts) > 1 else str(error))
        if problems:
            raise RequestError("\n".join(problems))

    def _progress(self, total: int, *, use_tqdm: bool) -> Iterator[RequestOutput]:
        from tqdm import tqdm

        tokens = 0
        with tqdm(total=total, desc="requests", disable=None if use_tqdm else True, dynamic_ncols=True) as bar:
            for output in self._engine.run():
                if output.finished:
                    tokens += sum(len(completion.token_ids) for completion in output.outputs)
                    seconds = max(bar.format_dict["elapsed"], 1e-9)
                    bar.set_postfix_str(f"{tokens / seconds:.1f} tokens/s", refresh=False)
                    bar.update()
                yield output

    def _encode(self, prompt: Prompt, number: int) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self.get_tokenizer().encode(prompt)
        fields: Any = prompt
        if not isinstance(fields, Mapping) or not {"prompt", "prompt_token_ids"} & set(fields):
            raise RequestError(f"prompt {number} is {prompt!r}; give a text, or {{'prompt_token_ids': [...]}}")
        text = fields.get("prompt")
        ids = fields["prompt_token_ids"] if "prompt_token_ids" in fields else self.get_tokenizer().encode(str(text))
        return text, list(ids)


def _spread(params: SamplingParams | Sequence[SamplingParams] | None, number: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * number
    if len(params) != number:
        raise RequestError(
            f"there are {number} prompts but {len(params)} sampling_params; give one for all or one per prompt"
        )
    return list(params)
