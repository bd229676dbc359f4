"""The settings of an engine, as one frozen record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.config.numerics import VARIANTS
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import ConfigError, nearest

LOAD_FORMATS = ("auto", "dummy")
OVERLAP = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model, where, with what arithmetic, and how much of the machine.

    Attributes:
        model: A folder, a hub id, or the word ``tiny``.
        accelerator: ``auto`` or the name of a backend.
        numerics: Arithmetic variant; ``released`` is DeepInfer's.
        fallback: What is accepted besides native implementations of ops.
        download_dir: Folder for models from the hub; empty for the hub library's own cache.
        load_format: ``auto`` reads the weights, ``dummy`` makes random ones.
        max_model_len: Longest sequence in tokens, prompt and output; 0 takes the model's maximum.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Rows of one step.
        chunked_prefill: Spread long prompts over several steps.
        headroom_blocks: Cache blocks that admission leaves free for each running sequence that may still grow; more
            make preemptions rarer and batches smaller.
        max_prefill_steps_in_a_row: Prefill steps before the running sequences get a decode step; more make batches
            grow sooner and running answers pause longer.
        arrivals_per_priority: Later arrivals that one step of priority may overtake.
        step_policy: ``alternating``: a step either reads prompts or decodes; ``mixed``: every step decodes, and reads
            prompts with the rows that are left.
        max_chunk_tokens: Rows of one prompt in one step; 0 for as many as the step has.
        max_prefill_delay_ms: Milliseconds for which new prompts may wait for others while sequences run, so that they
            are read together. An idle engine starts a prompt at once.
        max_num_waiting: Requests' sequences that may wait for memory; more are refused. 0 for any number.
        overlap: Whether a step is launched before the tokens of the one before it are known: ``on``, ``off``, or
            ``auto`` for where the device works behind the host. The tokens are the same.
        batch_invariant: A sequence's tokens do not depend on which others run beside it; ops that cannot promise
            that are refused.
        kv_cache_memory_gib: Memory for compressed entries; 0 takes a share of what is free.
        seed: Source of the seeds of requests that bring none; None makes them differ from run to run.

    Raises:
        ConfigError: Something is not allowed; all problems are listed.
    """

    model: str
    accelerator: str = "auto"
    numerics: str = "released"
    fallback: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE
    download_dir: str = ""
    load_format: str = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    headroom_blocks: int = 1
    max_prefill_steps_in_a_row: int = 2
    arrivals_per_priority: int = 1000
    step_policy: str = "alternating"
    max_chunk_tokens: int = 0
    max_prefill_delay_ms: int = 0
    max_num_waiting: int = 0
    overlap: str = "auto"
    batch_invariant: bool = False
    kv_cache_memory_gib: float = 0.0
    seed: int | None = field(default=0)

    def __post_init__(self) -> None:
        problems = [*self._wrong_names(), *self._wrong_numbers()]
        try:
            self.scheduler(2)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems, source="engine")

    def _wrong_names(self) -> list[str]:
        allowed = {"numerics": tuple(VARIANTS), "load_format": LOAD_FORMATS, "overlap": OVERLAP}
        values = {name: getattr(self, name) for name in allowed}
        return [
            f"{name}={value!r} is unknown; choose one of {', '.join(allowed[name])}{nearest(str(value), allowed[name])}"
            for name, value in values.items()
            if value not in allowed[name]
        ]

    def _wrong_numbers(self) -> list[str]:
        problems: list[str] = []
        tokens: Any = self.max_model_len
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0 or tokens == 1:
            problems.append(f"max_model_len={tokens!r} must be a whole number, 2 or more, or 0 for the model's maximum")
        gib: Any = self.kv_cache_memory_gib
        if isinstance(gib, bool) or not isinstance(gib, int | float) or not 0 <= gib < math.inf:
            problems.append(f"kv_cache_memory_gib={gib!r} must be a number of GiB, 0 or more")
        return problems

    def scheduler(self, max_model_len: int) -> SchedulerConfig:
        """The scheduler's part, with the longest sequence resolved."""
        return SchedulerConfig(
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            chunked_prefill=self.chunked_prefill,
            headroom_blocks=self.headroom_blocks,
            max_prefill_steps_in_a_row=self.max_prefill_steps_in_a_row,
            arrivals_per_priority=self.arrivals_per_priority,
            step_policy=self.step_policy,
            max_chunk_tokens=self.max_chunk_tokens,
            max_prefill_delay_ms=self.max_prefill_delay_ms,
            max_num_waiting=self.max_num_waiting,
        )
