"""Decoding under a steady load, with sequences whose drafts are accepted more or less often; no model, no clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from deepinfer_core.scheduler.drafts import NO_DRAFTS, DraftPlanner, Proposal, StepTiming
from deepinfer_core.scheduler.sequence import Sequence

NUM_DRAFTS = 5
DOMAINS = (0.95, 0.75, 0.4)
"""Usual chance that a draft is accepted when all before it were: arithmetic, code, chat."""
LENGTH = 200
"""Tokens of a sequence; another of the next domain follows it."""
RARELY = 1e-9

Forward = Callable[[int], float]
"""Seconds of the forward pass by rows."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What things take, in seconds.

    Attributes:
        forward: By rows.
        sample: By sequences.
        draft: Likewise.
        noise: Relative standard deviation of what is measured.
        context: For each row and each token of context behind it.
    """

    forward: Forward
    sample: Forward = lambda num_sequences: 3e-4 + 1e-6 * num_sequences
    draft: Forward = lambda num_sequences: 5e-4 + 2e-6 * num_sequences
    noise: float = 0.0
    context: float = 0.0


def staircase(width: int, *, per_row: float, fixed: float = 8e-3, free: int = 0) -> Forward:
    """Steps of so many rows each, behind so many that cost nothing."""

    def forward(num_rows: int) -> float:
        return fixed + per_row * width * math.ceil(max(0, num_rows - free) / width)

    return forward


def measured(forward: Forward, width: int, most: int) -> dict[int, float]:
    """The curve that a start-up would measure at the end of each stair."""
    return {rows: forward(rows) for rows in range(width, most + width, width)}


@dataclass(eq=False)
class _Stream:
    """Text whose difficulty changes slowly from token to token, and a sequence that generates it."""

    text: random.Random
    rng: random.Random
    domain: int
    sequence: Sequence = field(init=False)
    _difficulty: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.domain = (self.domain + 1) % len(DOMAINS)
        self.sequence = Sequence(request_id="", prompt_token_ids=(1,), max_tokens=LENGTH)
        self.sequence.max_num_tokens = LENGTH + 1
        self._difficulty = [self.text.gauss(0.0, 1.0)]

    def propose(self, sharpness: float) -> Proposal:
        """Drafts behind the last token; above 1 ``sharpness`` makes confidences more extreme than they should be."""
        usual, confidence = math.log(DOMAINS[self.domain] / (1 - DOMAINS[self.domain])), list[float]()
        for position in range(self.sequence.num_tokens, self.sequence.num_tokens + NUM_DRAFTS):
            logit = usual + 1.2 * self._at(position) + 0.4 * self.rng.gauss(0.0, 1.0)
            confidence.append(1 / (1 + math.exp(-sharpness * logit)))
        return Proposal((0,) * NUM_DRAFTS, tuple(confidence))

    def _at(self, position: int) -> float:
        while len(self._difficulty) <= position:
            self._difficulty.append(0.9 * self._difficulty[-1] + math.sqrt(1 - 0.81) * self.text.gauss(0.0, 1.0))
        return self._difficulty[position]


def truth(confidence: float, sharpness: float) -> float:
    """The chance behind a confidence that is too extreme."""
    confidence = min(max(confidence, RARELY), 1 - RARELY)
    return 1 / (1 + (1 / confidence - 1) ** (1 / sharpness))


@dataclass(kw_only=True)
class Result:
    """What a run gave.

    Attributes:
        tokens: Expected tokens.
        seconds: Time.
        drafts: Drafts verified.
        sequence_steps: Sequences of all steps.
        proposals: Steps behind which drafts were made.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    drafts: int = 0
    sequence_steps: int = 0
    proposals: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def run(
    planner: DraftPlanner,
    machine: Machine,
    num_sequences: int,
    *,
    num_steps: int,
    warm_up: int = 0,
    sharpness: float = 1.0,
    seed: int = 0,
) -> Result:
    """Decode so many sequences at a time; steps of the warm-up do not count."""
    rng = random.Random(seed)
    streams = [_Stream(random.Random(f"{seed} {number}"), rng, number) for number in range(num_sequences)]
    for stream in streams:  # at all ages
        stream.sequence.token_ids += [0] * rng.randrange(LENGTH - NUM_DRAFTS)
    result = Result()
    for step in range(warm_up + num_steps):
        if step == warm_up:
            result = Result()
        _step(planner, machine, streams, result, sharpness)
    return result


def _step(planner: DraftPlanner, machine: Machine, streams: list[_Stream], result: Result, sharpness: float) -> None:
    sequences = [stream.sequence for stream in streams]
    limits = [min(len(s.proposal.token_ids), s.num_remaining_tokens - 1) for s in sequences]
    lengths = planner.lengths(sequences, limits, 1 << 20) if any(limits) else limits
    assert all(0 <= length <= limit for length, limit in zip(lengths, limits, strict=True))
    proposes = planner.proposes(len(streams))
    num_context = sum(sequence.num_tokens for sequence in sequences)
    for stream, length in zip(streams, lengths, strict=True):
        result.tokens += _advance(stream, length, sharpness)
        if stream.sequence.num_remaining_tokens <= 0:
            stream.restart()
        stream.sequence.take_proposal(stream.propose(sharpness) if proposes else NO_DRAFTS)
    timing = _timing(machine, streams, sum(lengths), num_context, proposes)
    planner.observe(timing)
    result.seconds += timing.verify_s + timing.rest_s
    result.drafts += sum(lengths)
    result.sequence_steps += len(streams)
    result.proposals += proposes


def _advance(stream: _Stream, length: int, sharpness: float) -> float:
    """Generate what a step yields; returns the number to expect, which is less noisy than the number itself."""
    expected = chance = 1.0
    accepted, stands = 0, True
    for confidence in stream.sequence.proposal.confidence[:length]:
        own = truth(confidence, sharpness)
        chance *= own
        expected += chance
        stands = stands and stream.rng.random() < own
        accepted += stands
    stream.sequence.token_ids += [0] * (1 + accepted)
    return expected


def _timing(machine: Machine, streams: list[_Stream], num_drafts: int, num_context: int, proposes: bool) -> StepTiming:
    count, rng = len(streams), streams[0].rng
    num_rows = count + num_drafts
    verify_s = machine.forward(num_rows) + machine.context * num_rows * num_context / count
    rest_s = machine.sample(count) + (machine.draft(count) if proposes else 0.0)
    return StepTiming(
        num_sequences=count,
        num_rows=num_rows,
        verify_s=verify_s * max(0.1, 1.0 + machine.noise * rng.gauss(0.0, 1.0)),
        rest_s=rest_s * max(0.1, 1.0 + machine.noise * rng.gauss(0.0, 1.0)),
        proposed=proposes,
    )
