"""Complete the lines of a file of prompts, many at once; each is told when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from deepinfer_core.errors import InternalError, RequestError
from deepinfer_core.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from deepinfer_core.engine.async_llm import AsyncLLM
    from deepinfer_core.engine.batch_file import PromptLine
    from deepinfer_core.outputs import RequestOutput

OnEnd = Callable[["PromptLine", "RequestOutput | RequestError"], None]
"""Takes a line, and its last record or why it could not be served."""

_WAITING_PER_RUNNING = 2
"""Requests in the engine for each that it can run: the next one is there when one ends, and memory stays bounded."""


async def run_lines(llm: AsyncLLM, lines: Sequence[PromptLine], on_end: OnEnd) -> None:
    """Complete lines until all have ended. A line that cannot be served, or fails, harms no other.

    Cancelling this ends the requests that run; those that have ended were told before.

    Args:
        llm: The model.
        lines: In the order in which they are started.
        on_end: Called once for each line, in the order in which they end.
    """
    pending = iter(lines)
    num_workers = min(_WAITING_PER_RUNNING * llm.config.max_num_seqs, len(lines))
    async with asyncio.TaskGroup() as workers:
        for _ in range(num_workers):
            workers.create_task(_work(llm, pending, on_end))


async def _work(llm: AsyncLLM, pending: Iterator[PromptLine], on_end: OnEnd) -> None:
    """Take lines, one after the other, from what all workers share."""
    for line in pending:
        try:
            ended: RequestOutput | RequestError = await _complete(llm, line)
        except RequestError as error:
            ended = error
        on_end(line, ended)


async def _complete(llm: AsyncLLM, line: PromptLine) -> RequestOutput:
    """The last record of a line.

    Raises:
        RequestError: It cannot be served.
    """
    if line.error:
        raise RequestError(line.error)
    params = replace(line.params, output_kind=RequestOutputKind.FINAL_ONLY)
    if line.prompt is None:
        records = llm.chat(line.messages, params, **line.chat_options)
    else:
        records = llm.generate(line.prompt, params)
    async with aclosing(records):
        async for output in records:
            if output.finished:
                return output
    raise InternalError(f"line {line.number} ended without a last record")
