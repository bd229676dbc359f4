"""From what a caller asks to a request that the engine can run, or a refusal that names every problem."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from deepinfer_core.engine.bad_words import bad_word_tokens
from deepinfer_core.engine.completion import Completion
from deepinfer_core.engine.logprobs import PromptScores
from deepinfer_core.engine.request import Request
from deepinfer_core.engine.request_checks import check_all, check_order, check_params, plain_token_ids
from deepinfer_core.scheduler.sequence import Sequence as ScheduledSequence

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.sampling_params import SamplingParams


class Intake:
    """Checks requests for one model and makes them."""

    def __init__(
        self,
        architecture: ModelArchitecture,
        tokenizer: Tokenizer | None,
        check_sequence: Callable[[ScheduledSequence], None],
        seed: int | None,
        *,
        cache_root: bytes = b"",
    ) -> None:
        """Begin with no request.

        Args:
            architecture: The model's.
            tokenizer: The model's, if it has one.
            check_sequence: Raises when the scheduler could never run a sequence.
            seed: Source of the seeds of requests that bring none; None makes them differ from run to run.
            cache_root: Beginning of the keys of cached blocks; empty when nothing is reused. Requests that ask for
                log-probabilities of their prompt have it computed whole.
        """
        self._architecture = architecture
        self._tokenizer = tokenizer
        self._check_sequence = check_sequence
        self._cache_root = cache_root
        self._seeds = random.Random(seed) if seed is not None else secrets.SystemRandom()  # noqa: S311  # repeatable on purpose

    def check(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, priority: int, timeout_s: float | None
    ) -> tuple[int, ...]:
        """Refuse what cannot be served; returns the prompt's tokens as integers of our own.

        Raises:
            RequestError: Something is wrong; every problem is listed.
        """
        vocab_size, tokenizer = self._architecture.vocab_size, self._tokenizer
        ids: tuple[int, ...] = ()

        def read_ids() -> None:
            nonlocal ids
            ids = plain_token_ids(prompt_token_ids, vocab_size)

        check_all(
            read_ids,
            lambda: check_params(params, vocab_size, tokenizer),
            lambda: check_order(priority, timeout_s),
        )
        self._check_sequence(
            ScheduledSequence(request_id="", prompt_token_ids=ids, max_tokens=params.max_tokens, priority=priority)
        )
        return ids

    def request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None,
        priority: int,
        timeout_s: float | None,
        now: float,
    ) -> Request:
        """A checked request with a sequence for each completion.

        Raises:
            RequestError: As :meth:`check`.
        """
        ids = self.check(prompt_token_ids, params, priority, timeout_s)
        tokenizer, eos, wanted = self._tokenizer, self._architecture.eos_token_id, params.prompt_logprobs
        make = partial(
            ScheduledSequence,
            request_id=request_id,
            prompt_token_ids=ids,
            max_tokens=params.max_tokens,
            priority=priority,
            arrival_time=now,
            deadline=math.inf if timeout_s is None else now + timeout_s,
            cache_root=self._cache_root if wanted is None else b"",
        )
        return Request(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=ids,
            params=params,
            seed=params.seed if params.seed is not None else self._seeds.getrandbits(64),
            sequences=tuple(make(index=i) for i in range(params.n)),
            completions=tuple(Completion(i, params, tokenizer, eos) for i in range(params.n)),
            bad_words=bad_word_tokens(params.bad_words, tokenizer) if tokenizer is not None else (),
            prompt_scores=None
            if wanted is None
            else PromptScores(ids, wanted, tokenizer if params.detokenize else None),
            arrival_time=now,
        )
