"""What is refused at the door, because it could never run."""

from __future__ import annotations

import math

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import RequestError, describe
from deepinfer_core.scheduler.cache_memory import CacheMemory
from deepinfer_core.scheduler.sequence import Sequence


def check(sequence: Sequence, config: SchedulerConfig, memory: CacheMemory, *, num_waiting: int = 0) -> None:
    """Refuse a sequence that no step could ever hold, or that would wait behind too many.

    Raises:
        RequestError: Every reason, each with the value, the limit and the remedy.
    """
    problems = [*_nothing_to_do(sequence), *_too_long(sequence, config, memory)]
    if math.isnan(sequence.deadline):
        problems.append("its deadline is not a number; give a time, or leave it out")
    if config.max_num_waiting and num_waiting >= config.max_num_waiting:
        problems.append(
            f"{num_waiting} sequences wait already, and max_num_waiting={config.max_num_waiting}; try again later or "
            "raise max_num_waiting"
        )
    if problems:
        raise RequestError(describe(f"request {sequence.request_id!r}", problems))


def _nothing_to_do(sequence: Sequence) -> list[str]:
    problems: list[str] = []
    if not sequence.num_prompt_tokens:
        problems.append("the prompt has no tokens; give one at least")
    if sequence.max_tokens < 1:
        problems.append(
            f"max_tokens={sequence.max_tokens}, but a request generates one token at least; ask for 1 or more"
        )
    return problems


def _too_long(sequence: Sequence, config: SchedulerConfig, memory: CacheMemory) -> list[str]:
    """The limits that a prompt breaks; those on whole sequences leave room for the first generated token."""
    length, problems = sequence.num_prompt_tokens, list[str]()
    if length >= config.max_model_len:
        problems.append(
            f"the prompt has {length} tokens, but max_model_len={config.max_model_len} leaves it "
            f"{config.max_model_len - 1}; shorten the prompt or raise max_model_len"
        )
    if length >= memory.num_tokens:
        problems.append(
            f"the prompt has {length} tokens, but the whole cache ({memory.blocks.size} blocks of {BLOCK_TOKENS}) "
            f"leaves it {memory.num_tokens - 1}; shorten the prompt or give the cache more memory"
        )
    if length > config.max_num_batched_tokens and not config.chunked_prefill:
        problems.append(
            f"the prompt has {length} tokens, but max_num_batched_tokens={config.max_num_batched_tokens} and "
            "chunked_prefill is off; shorten the prompt, raise max_num_batched_tokens or turn chunked_prefill on"
        )
    return problems
