"""The settings of an engine, as one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, field

from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.config.numerics import VARIANTS
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.errors import ConfigError, nearest

LOAD_FORMATS = ("auto", "dummy")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model, where, with what arithmetic, and how much of the machine.

    Attributes:
        model: A folder, a hub id, or the word ``tiny``.
        accelerator: ``auto`` or the name of a backend.
        numerics: Arithmetic variant; ``released`` is DeepInfer's.
        fallback: What is accepted besides native implementations of ops.
        load_format: ``auto`` reads the weights, ``dummy`` makes random ones.
        max_model_len: Longest sequence in tokens, prompt and output; 0 takes the model's maximum.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Rows of one step.
        chunked_prefill: Spread long prompts over several steps.
        kv_cache_memory_gib: Memory for compressed entries; 0 takes a share of what is free.
        seed: Source of the seeds of requests that bring none; None makes them differ from run to run.

    Raises:
        ConfigError: Something is not allowed; all problems are listed.
    """

    model: str
    accelerator: str = "auto"
    numerics: str = "released"
    fallback: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE
    load_format: str = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    kv_cache_memory_gib: float = 0.0
    seed: int | None = field(default=0)

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.numerics not in VARIANTS:
            problems.append(f"numerics={self.numerics!r} is unknown; choose one of {', '.join(VARIANTS)}{nearest(self.numerics, tuple(VARIANTS))}")
        if self.load_format not in LOAD_FORMATS:
            problems.append(f"load_format={self.load_format!r} is unknown; choose one of {', '.join(LOAD_FORMATS)}")
        if not isinstance(self.max_model_len, int) or self.max_model_len < 0:
            problems.append(f"max_model_len={self.max_model_len!r} must be a whole number of tokens, or 0 for the model's maximum")
        if not isinstance(self.kv_cache_memory_gib, int | float) or not 0 <= self.kv_cache_memory_gib < float("inf"):
            problems.append(f"kv_cache_memory_gib={self.kv_cache_memory_gib!r} must be 0 or more GiB")
        try:
            self.scheduler(max(self.max_model_len, 2) if isinstance(self.max_model_len, int) else 2)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems, source="engine")

    def scheduler(self, max_model_len: int) -> SchedulerConfig:
        """The scheduler's part, with the longest sequence resolved."""
        return SchedulerConfig(
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            chunked_prefill=self.chunked_prefill,
        )
