"""Random requests, and the one right answer to each of them."""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from itertools import takewhile

from deepinfer_core.scheduler.sequence import FinishReason, Sequence

EOS = 0
VOCAB_SIZE = 97
"""Each token is the end of text with a chance of 1 in 97."""


def token_at(request_id: str, index: int, position: int) -> int:
    """The token that the null model puts at a position: a function of nothing else, like seeded sampling."""
    return zlib.crc32(f"{request_id}/{index}/{position}".encode()) % VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request, and what will happen to it.

    Attributes:
        time: When it is added.
        request_id: Its name.
        prompt: Its prompt.
        max_tokens: Output at most.
        num_sequences: Answers that it wants.
        priority: Lower is earlier.
        abort_at: When the caller gives it up.
        deadline: When it must end.
        fails_at: Position whose logits are broken, or -1.
        cache_root: Whose cached prefixes it may use; nobody's when empty.
    """

    time: float
    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    num_sequences: int
    priority: int
    abort_at: float
    deadline: float
    fails_at: int
    cache_root: bytes = b""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    def sequences(self) -> list[Sequence]:
        """What the scheduler gets."""
        return [
            Sequence(
                request_id=self.request_id,
                index=index,
                prompt_token_ids=self.prompt,
                max_tokens=self.max_tokens,
                eos_token_id=EOS,
                priority=self.priority,
                deadline=self.deadline,
                arrival_time=self.time,
                cache_root=self.cache_root,
            )
            for index in range(self.num_sequences)
        ]

    def check(self, sequence: Sequence, max_model_len: int) -> None:
        """Compare a finished sequence with what it had to become, whatever happened to it on the way."""
        output = sequence.output_token_ids
        positions = range(self.num_prompt_tokens, self.num_prompt_tokens + len(output))
        assert output == [token_at(self.request_id, sequence.index, p) for p in positions]
        assert EOS not in output[:-1]
        most = min(self.max_tokens, max_model_len - self.num_prompt_tokens)
        assert len(output) <= most
        match sequence.finish_reason:
            case FinishReason.STOP:
                assert output[-1] == EOS
            case FinishReason.LENGTH:
                assert len(output) == most
            case FinishReason.ABORT:
                assert self.abort_at < math.inf
            case FinishReason.TIMEOUT:
                assert self.deadline < math.inf
            case FinishReason.ERROR:
                assert sequence.num_tokens == self.fails_at
            case None:
                raise AssertionError(f"{sequence!r} came back unfinished")


def arrivals(
    rng: random.Random, count: int, *, per_step: float, longest_prompt: int, longest_output: int
) -> list[Arrival]:
    """So many requests in order of time: mostly short, some long, in bursts; some are given up, late or broken."""
    time, found = 0.0, list[Arrival]()
    for number in range(count):
        time += 0.0 if rng.random() < 0.3 else rng.expovariate(0.7 * per_step)
        num_prompt_tokens = rng.randint(1, longest_prompt if rng.random() < 0.2 else longest_prompt // 4)
        max_tokens = rng.randint(1, longest_output)
        found.append(
            Arrival(
                time=time,
                request_id=f"r{number}",
                prompt=tuple(token_at(f"r{number}", 0, p) or 1 for p in range(num_prompt_tokens)),
                max_tokens=max_tokens,
                num_sequences=rng.choice((1,) * 18 + (2, 3)),
                priority=rng.choice((-1, 0, 0, 0, 0, 1)),
                abort_at=time + rng.uniform(0, 300) if rng.random() < 0.1 else math.inf,
                deadline=time + rng.uniform(0, 600) if rng.random() < 0.1 else math.inf,
                fails_at=num_prompt_tokens + rng.randrange(max_tokens) if rng.random() < 0.02 else -1,
            )
        )
    return found


ROOTS = (b"one model.......", b"another adapter.")
SYSTEM_PROMPT_LENGTHS = (70, 150, 300, 384)


def conversations(
    rng: random.Random, count: int, *, per_step: float, longest_prompt: int, longest_output: int
) -> list[Arrival]:
    """The same requests with prompts that share beginnings.

    A prompt is a system prompt and something new; or an earlier prompt with its output and something new; or just an
    earlier prompt, with another end at times. Some may not use the prefix cache, or use that of another adapter.
    """
    found: list[Arrival] = []
    systems = [tuple(rng.randrange(1, VOCAB_SIZE) for _ in range(length)) for length in SYSTEM_PROMPT_LENGTHS]
    for arrival in arrivals(
        rng, count, per_step=per_step, longest_prompt=longest_prompt, longest_output=longest_output
    ):
        before, choice = rng.choice(found) if found else None, rng.random()
        if before is None or choice < 0.4:
            start = rng.choice(systems)
        elif choice < 0.8:
            start = before.prompt + answer(before)
        else:
            start = before.prompt[: rng.choice((len(before.prompt), rng.randint(1, len(before.prompt))))]
        more = arrival.prompt[: rng.choice((0, len(arrival.prompt)))] if before else arrival.prompt
        prompt = (start + more)[:longest_prompt]
        found.append(
            replace(
                arrival,
                prompt=prompt,
                cache_root=rng.choice((b"", ROOTS[1], *ROOTS[:1] * 14)),
                fails_at=len(prompt) + rng.randrange(arrival.max_tokens) if arrival.fails_at >= 0 else -1,
            )
        )
    return found


def answer(arrival: Arrival) -> tuple[int, ...]:
    """The output of a request if nothing goes wrong, without the end of text."""
    positions = range(arrival.num_prompt_tokens, arrival.num_prompt_tokens + arrival.max_tokens)
    tokens = (token_at(arrival.request_id, 0, p) for p in positions)
    return tuple(takewhile(lambda token: token != EOS, tokens))
