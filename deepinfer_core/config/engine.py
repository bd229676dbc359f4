"""The settings of an engine, as one frozen record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.config.numerics import VARIANTS
from deepinfer_core.config.prefix_cache import DISK_WAIT_S, PREFIX_CACHE_MODES, PrefixCacheConfig
from deepinfer_core.config.prompt_truncation import DEFAULT_KEEP_TOKENS, PromptTruncation
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.config.speculation import SpeculativeConfig, speculative_config
from deepinfer_core.errors import ConfigError, wrong_choices

LOAD_FORMATS = ("auto", "dummy")
WEIGHT_COPIES = ("auto", "dense", "packed")
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
        weight_copies: What a backend may keep of quantised weights for speed: ``dense`` copies, only the ``packed``
            codes of the checkpoint, which take a half to an eighth of that memory, or ``auto`` for the backend's
            own choice. The numbers that are multiplied are the same.
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
        batch_invariant: A sequence's tokens do not depend on which others run beside it, nor on drafts; ops that cannot
            promise that are refused. Tokens are drawn by ``sampling.race``, which drafts can foresee, and so are
            others than without this mode.
        prefix_cache: Whether prompts reuse cache blocks of earlier ones that begin with the same tokens: ``off``;
            ``exact``: only from where the whole state was kept, so that a hit changes nothing; ``bounded``: also from
            elsewhere, with the last window of the hit computed again from an empty one.
        prefix_snapshots: States that are kept on the device for that; each takes a state slot.
        prefix_memory_gib: Host memory for copies of cached prefixes; 0 for none.
        prefix_disk: Folder for what leaves that memory; it is found again after a restart. Empty for none. What is read
            from it goes through that memory, so there must be some.
        prefix_disk_gib: What the folder may take.
        prefix_disk_wait_s: Seconds for which a request may wait for the folder when its turn has come; then what has
            not arrived is computed. Others are served meanwhile.
        prompt_truncation: How much of a prompt the decoder layers see: ``off`` for all of it; ``compact`` for its last
            tokens, at about half the work; ``mask`` gives the results of ``compact`` at the cost of ``off``.
        prompt_keep_tokens: Those last tokens.
        speculative_config: How drafts are made and verified, a
            :class:`~deepinfer_core.config.speculation.SpeculativeConfig` or a mapping of its fields; None for plain
            decoding.
        kv_cache_memory_gib: Memory for compressed entries; 0 takes a share of what is free.
        log_stats_interval_s: Seconds between two lines about the engine in the log; 0 for none.
        metrics: Count for a page in Prometheus' text format.
        metrics_vllm_names: Show metrics under vLLM's names, too, for dashboards and routers that know those.
        stats_file: File to which every record about steps and requests is appended as a line of JSON; empty for none.
        stats_sinks: Names of receivers of other packages.
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
    weight_copies: str = "auto"
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
    prefix_cache: str = "off"
    prefix_snapshots: int = 64
    prefix_memory_gib: float = 0.0
    prefix_disk: str = ""
    prefix_disk_gib: float = 16.0
    prefix_disk_wait_s: float = DISK_WAIT_S
    prompt_truncation: str = "off"
    prompt_keep_tokens: int = DEFAULT_KEEP_TOKENS
    speculative_config: SpeculativeConfig | None = None
    kv_cache_memory_gib: float = 0.0
    log_stats_interval_s: float = 0.0
    metrics: bool = False
    metrics_vllm_names: bool = False
    stats_file: str = ""
    stats_sinks: tuple[str, ...] = ()
    seed: int | None = field(default=0)

    def __post_init__(self) -> None:
        problems = [*self._wrong_names(), *self._wrong_numbers()]
        for part in (lambda: self.scheduler(2), self.truncation, self._resolve_speculation):
            try:
                part()
            except ConfigError as error:
                problems += error.problems
        problems = problems or self._contradictions()
        if problems:
            raise ConfigError(problems, source="engine")

    def _wrong_names(self) -> list[str]:
        allowed = {
            "numerics": tuple(VARIANTS),
            "load_format": LOAD_FORMATS,
            "weight_copies": WEIGHT_COPIES,
            "overlap": OVERLAP,
            "prefix_cache": PREFIX_CACHE_MODES,
        }
        return wrong_choices({name: getattr(self, name) for name in allowed}, allowed)

    def _wrong_numbers(self) -> list[str]:
        problems: list[str] = []
        tokens: Any = self.max_model_len
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0 or tokens == 1:
            problems.append(f"max_model_len={tokens!r} must be a whole number, 2 or more, or 0 for the model's maximum")
        for name in ("kv_cache_memory_gib", "prefix_memory_gib", "prefix_disk_gib"):
            gib: Any = getattr(self, name)
            if isinstance(gib, bool) or not isinstance(gib, int | float) or not 0 <= gib < math.inf:
                problems.append(f"{name}={gib!r} must be a number of GiB, 0 or more")
        wait: Any = self.prefix_disk_wait_s
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < math.inf:
            problems.append(f"prefix_disk_wait_s={wait!r} must be a number of seconds, 0 or more")
        snapshots: Any = self.prefix_snapshots
        if isinstance(snapshots, bool) or not isinstance(snapshots, int) or snapshots < 0:
            problems.append(f"prefix_snapshots={snapshots!r} must be a whole number, 0 or more")
        return problems

    def _resolve_speculation(self) -> None:
        object.__setattr__(self, "speculative_config", speculative_config(self.speculative_config))

    def _contradictions(self) -> list[str]:
        problems: list[str] = []
        if self.prefix_cache == "off":
            problems += [
                f"{name} is set, but prefix_cache is off; choose exact or bounded, or leave {name} out"
                for name in ("prefix_memory_gib", "prefix_disk")
                if getattr(self, name)
            ]
        if self.prefix_cache == "exact" and self.prompt_truncation != "off":
            problems.append(
                f"prefix_cache=exact needs the state at the end of a prefix, and prompt_truncation="
                f"{self.prompt_truncation} leaves only that of the prompt that was truncated; choose bounded, or turn "
                "one of them off"
            )
        if self.prefix_cache == "exact" and not self.prefix_snapshots:
            problems.append("prefix_cache=exact finds nothing without states; set prefix_snapshots to 1 or more")
        if self.prefix_disk and not self.prefix_memory_gib:
            problems.append(
                "prefix_disk is set, but prefix_memory_gib is 0, and what is read from the disk goes through that "
                "memory; set prefix_memory_gib to what the longest prefixes take, 1 or so"
            )
        if self.prefix_disk and not self.prefix_disk_gib:
            problems.append("prefix_disk names a folder that may take 0 GiB; raise prefix_disk_gib")
        return problems

    def truncation(self) -> PromptTruncation:
        """How much of prompts the decoder layers see."""
        mode: Any = self.prompt_truncation
        return PromptTruncation(mode=mode, keep_tokens=self.prompt_keep_tokens)

    def prefixes(self, window_tokens: int) -> PrefixCacheConfig:
        """The prefix cache's part."""
        truncation = self.truncation()
        return PrefixCacheConfig(
            mode=self.prefix_cache,
            num_snapshots=self.prefix_snapshots if self.prefix_cache != "off" and not truncation.is_on else 0,
            window_tokens=window_tokens,
            keep_tokens=truncation.keep_tokens if truncation.is_on else 0,
            max_wait_s=float(self.prefix_disk_wait_s),
        )

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
