"""What is wrong with a request before the scheduler sees it."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Container, Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

from deepinfer_core.engine.bad_words import bad_word_tokens
from deepinfer_core.errors import RequestError, describe
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.engine.tokenizer import Tokenizer


def check_all(*checks: Callable[[], object]) -> None:
    """Run checks and raise one error with what all of them find.

    Raises:
        RequestError: At least one check raised it.
    """
    problems: list[str] = []
    for check in checks:
        try:
            check()
        except RequestError as error:
            problems.append(str(error))
    if problems:
        raise RequestError(problems[0] if len(problems) == 1 else describe("request", problems))


def plain_token_ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    """A prompt's token ids as integers of our own.

    Raises:
        RequestError: They are no list of tokens of this model, or there are none.
    """
    advice = "give at least one token of this model"
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise RequestError(f"prompt: token ids {reprlib.repr(given)} are no list of whole numbers; {advice}")
    ids: list[Any] = list(given)
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:  # quick: prompts have 100,000 tokens
        return tuple(ids)
    wrong = [i for i in ids if not (_is_whole(i) and 0 <= i < vocab_size)]
    if wrong or not ids:
        what = f"token ids {wrong[:5]} are outside 0 .. {vocab_size - 1}" if wrong else "it has no tokens"
        raise RequestError(f"prompt: {what}; {advice}")
    return tuple(int(i) for i in ids)


def check_params(params: Any, vocab_size: int, tokenizer: Tokenizer | None) -> None:
    """Refuse parameters that this model cannot honour.

    Raises:
        RequestError: They are of another type, name tokens that it lacks, or hold texts that it cannot look for.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError(
            f"sampling parameters {reprlib.repr(params)} are no SamplingParams; give SamplingParams(...)"
        )
    check_all(
        lambda: params.check_vocabulary(vocab_size),
        lambda: bad_word_tokens(params.bad_words, tokenizer) if tokenizer else _check_without_tokenizer(params),
    )


def check_request_id(request_id: Any, taken: Container[str]) -> None:
    """Refuse the name of a request.

    Raises:
        RequestError: It is no text, or an unfinished request has it.
    """
    if not isinstance(request_id, str):
        raise RequestError(f"request_id={reprlib.repr(request_id)} must be a text")
    if request_id in taken:
        raise RequestError(f"request {request_id!r} is unfinished already; choose another request id")


def check_order(priority: Any, timeout_s: Any) -> None:
    """Refuse a priority or a time-out that means nothing.

    Raises:
        RequestError: Of a wrong type or out of range; names both.
    """
    problems: list[str] = []
    if not _is_whole(priority):
        problems.append(f"priority={reprlib.repr(priority)} must be a whole number; lower ones are served first")
    if timeout_s is not None and not (_is_number(timeout_s) and 0 < timeout_s < math.inf):
        problems.append(f"timeout_s={reprlib.repr(timeout_s)} must be a number of seconds above 0, or None for none")
    if problems:
        raise RequestError(describe("request", problems))


def _check_without_tokenizer(params: SamplingParams) -> None:
    given = [name for name in ("bad_words", "stop") if getattr(params, name)]
    if given:
        raise RequestError(
            f"SamplingParams: {' and '.join(given)} cannot be found without a tokenizer, and this model has none; "
            "use token ids instead"
        )


def _is_whole(value: Any) -> bool:
    return type(value) is int or (not isinstance(value, bool) and isinstance(value, Integral))


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float)
