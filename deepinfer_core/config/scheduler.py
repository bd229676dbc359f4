"""Budgets of a step, and the knobs of the default policy."""

from __future__ import annotations

from dataclasses import dataclass, fields

from deepinfer_core.errors import ConfigError

STEP_POLICIES = ("alternating", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What a step may hold, how long a sequence may become, and what the default policy prefers.

    Attributes:
        max_model_len: Prompt and output of one sequence together, in tokens; a cache that is smaller lowers it.
        max_num_seqs: Sequences that hold cache memory, and so rows of a decode step at most.
        max_num_batched_tokens: Rows of one step.
        chunked_prefill: Spread a prompt that is longer than what is left of a step over several steps. Off, such a
            prompt waits for a step of its own, and one that is longer than a whole step is refused.
        headroom_blocks: Blocks that admission leaves free for each admitted sequence that may still grow.
        max_prefill_steps_in_a_row: Prefill steps before the running sequences get a decode step.
        arrivals_per_priority: Later arrivals that one step of priority may overtake; bounds how long anybody waits.
        step_policy: ``alternating``: a step either reads prompts or decodes; ``mixed``: every step decodes, and reads
            prompts with the rows that are left.
        max_chunk_tokens: Rows of one prompt in one step; 0 for as many as the step has.
        max_prefill_delay_ms: Milliseconds for which new prompts may wait for others while sequences run, so that they
            are read together. An idle engine starts a prompt at once.
        max_num_waiting: Sequences that may wait for memory; more are refused. 0 for any number.

    Raises:
        ConfigError: A value is not allowed, or two contradict each other; all problems are listed.
    """

    max_model_len: int = 4096
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

    def __post_init__(self) -> None:
        problems = self._wrong_values() or self._contradictions()
        if problems:
            raise ConfigError(problems, source="scheduler")

    def _wrong_values(self) -> list[str]:
        least = {
            "max_model_len": 2,
            "headroom_blocks": 0,
            "max_chunk_tokens": 0,
            "max_prefill_delay_ms": 0,
            "max_num_waiting": 0,
        }
        values: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        problems: list[str] = []
        if not isinstance(values.pop("chunked_prefill"), bool):
            problems.append(f"chunked_prefill={self.chunked_prefill!r} must be true or false")
        if values.pop("step_policy") not in STEP_POLICIES:
            problems.append(f"step_policy={self.step_policy!r} is unknown; choose one of {', '.join(STEP_POLICIES)}")
        for name, value in values.items():
            low = least.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                problems.append(f"{name}={value!r} must be a whole number, {low} or more")
        return problems

    def _contradictions(self) -> list[str]:
        problems: list[str] = []
        if self.max_chunk_tokens and not self.chunked_prefill:
            problems.append(
                f"max_chunk_tokens={self.max_chunk_tokens} splits prompts, but chunked_prefill is off; turn it on, or "
                "leave max_chunk_tokens at 0"
            )
        if self.max_num_batched_tokens >= self.max_num_seqs:
            return problems
        return [
            *problems,
            f"max_num_batched_tokens={self.max_num_batched_tokens} is less than max_num_seqs={self.max_num_seqs}, "
            "but a decode step has a row for every running sequence; raise the first or lower the second",
        ]
