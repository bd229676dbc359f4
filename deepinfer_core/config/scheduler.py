"""Budgets of a step, and the knobs of the default policy."""

from __future__ import annotations

from dataclasses import dataclass, fields

from deepinfer_core.errors import ConfigError


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

    def __post_init__(self) -> None:
        problems = self._wrong_values() or self._contradictions()
        if problems:
            raise ConfigError(problems, source="scheduler")

    def _wrong_values(self) -> list[str]:
        least = {"max_model_len": 2, "headroom_blocks": 0}
        values: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        problems: list[str] = []
        if not isinstance(values.pop("chunked_prefill"), bool):
            problems.append(f"chunked_prefill={self.chunked_prefill!r} must be true or false")
        for name, value in values.items():
            low = least.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                problems.append(f"{name}={value!r} must be a whole number, {low} or more")
        return problems

    def _contradictions(self) -> list[str]:
        if self.max_num_batched_tokens >= self.max_num_seqs:
            return []
        return [
            f"max_num_batched_tokens={self.max_num_batched_tokens} is less than max_num_seqs={self.max_num_seqs}, "
            "but a decode step has a row for every running sequence; raise the first or lower the second"
        ]
