"""One request in the engine: what was asked, its sequence in the scheduler, its completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer_core.outputs import RequestMetrics, RequestOutput
from deepinfer_core.runtime.sampling_tensors import SamplingRow

if TYPE_CHECKING:
    from deepinfer_core.engine.completion import Completion
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.scheduler.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Request:
    """A request from its arrival to its last record.

    Attributes:
        request_id: Unique within the engine.
        prompt: Its text, if it was text.
        params: How to sample.
        seed: Its own, or drawn when it arrived.
        sequence: Its state in the scheduler.
        completion: Its output so far.
        arrival_time: Monotonic seconds, as the other times.
        first_scheduled_time: When its first step was planned.
        first_token_time: When its first token was sampled.
        finished_time: When it ended.
    """

    request_id: str
    prompt: str | None
    params: SamplingParams
    seed: int
    sequence: Sequence
    completion: Completion
    arrival_time: float
    first_scheduled_time: float | None = field(default=None)
    first_token_time: float | None = field(default=None)
    finished_time: float | None = field(default=None)

    def sampling_row(self) -> SamplingRow:
        """What the sampler needs to choose the next token."""
        sequence = self.sequence
        return SamplingRow(
            params=self.params,
            seed=self.seed,
            position=sequence.num_tokens,
            prompt_token_ids=sequence.token_ids[: sequence.num_prompt_tokens],
            output_token_ids=self.completion.token_ids,
        )

    def output(self) -> RequestOutput:
        """The record of this moment."""
        sequence = self.sequence
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=tuple(sequence.token_ids[: sequence.num_prompt_tokens]),
            outputs=(self.completion.output(),),
            finished=self.completion.finish_reason is not None,
            metrics=RequestMetrics(
                arrival_time=self.arrival_time,
                first_scheduled_time=self.first_scheduled_time,
                first_token_time=self.first_token_time,
                finished_time=self.finished_time,
            ),
        )
