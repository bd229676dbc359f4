"""What a request asks of the sampler, in vLLM's words."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import Any, TypeGuard

from deepinfer_core.errors import RequestError, describe
from deepinfer_core.structured_outputs_params import StructuredOutputsParams, read_structured_outputs

MAX_COMPLETIONS = 128
"""The most completions of one request."""
MAX_LOGPROBS = 1000
"""The most alternatives that can be reported with a token."""
LARGEST_BIAS = 100.0
"""Bound of ``logit_bias`` in both directions."""
_LARGEST_INT32 = 2**31 - 1
_LARGEST_FLOAT32 = 3.4e38
_UINT64 = 2**64 - 1


class RequestOutputKind(StrEnum):
    """What the records of a running request hold."""

    CUMULATIVE = "cumulative"
    """Everything so far, in each record."""
    DELTA = "delta"
    """What is new since the record before."""
    FINAL_ONLY = "final"
    """There is one record, when the request has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Every field here has an effect. Construction checks all of them and reports every problem at once.

    Attributes:
        n: Completions of the prompt, each with draws of its own.
        temperature: Divides the logits; 0 takes the most likely token (the lowest id among equals).
        top_p: Keep the likeliest tokens up to this mass; 1 keeps all.
        top_k: Keep this many of the likeliest tokens; 0 or -1 keeps all.
        min_p: Drop tokens less likely than this share of the likeliest; 0 drops none.
        seed: Makes the request repeatable, whatever else is in the batch; taken modulo 2^64. None draws a new one
            for each request that uses this object.
        max_tokens: Tokens to generate at most.
        min_tokens: Tokens to generate before the end of text or a stop token may appear.
        ignore_eos: Go on after the end-of-text token.
        stop: Texts that end the request.
        stop_token_ids: Tokens that end the request.
        bad_words: Words that the output must not hold, at the beginning of a text or after a space.
        include_stop_str_in_output: Leave the stop text, or the text of the token that ended the request, in the
            output; otherwise it is cut off.
        detokenize: Turn tokens into text; without, the text is empty.
        skip_special_tokens: Leave special tokens out of the text.
        logprobs: Report the log-probability of each token and of this many alternatives; None reports nothing.
        prompt_logprobs: The same for the tokens of the prompt.
        presence_penalty: Subtracted from the logit of every token in the output, in [-2, 2].
        frequency_penalty: Subtracted once per occurrence in the output, in [-2, 2].
        repetition_penalty: Divides (positive) or multiplies (negative) logits of tokens in prompt or output.
        logit_bias: Token -> number in [-100, 100] added to its logit.
        allowed_token_ids: The only tokens that may be generated; None allows all.
        output_kind: What the records hold that come while the request runs.
        structured_outputs: The language that the output must belong to, as parameters or as a mapping of their names;
            None leaves it free.
        seq_seed: Another name of ``seed``.
        top_logprobs: Another name of ``logprobs``.

    Raises:
        RequestError: Something is of the wrong type, not finite or out of range, or two fields contradict each other;
            all problems are listed.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    output_kind: str = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    seq_seed: InitVar[int | None] = None
    top_logprobs: InitVar[int | None] = None

    def __post_init__(self, seq_seed: int | None, top_logprobs: int | None) -> None:
        """Check every field, then store it in its plain type (numbers, tuples, a dict of our own)."""
        read = _Reader()
        seed = read.alias("seed", self.seed, "seq_seed", seq_seed)
        logprobs = read.alias("logprobs", self.logprobs, "top_logprobs", top_logprobs)
        plain = {**self._choice(read, seed), **self._ending(read), **self._reporting(read, logprobs)}
        read.problems += _contradictions(plain, read.broken)
        if read.problems:
            raise RequestError(describe("SamplingParams", read.problems))
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def _choice(self, read: _Reader, seed: Any) -> dict[str, Any]:
        """Plain values of the fields that choose tokens."""
        return {
            "n": read.integer("n", self.n, 1, MAX_COMPLETIONS),
            "temperature": read.number("temperature", self.temperature, 0.0, _LARGEST_FLOAT32),
            "top_p": read.number("top_p", self.top_p, 0.0, 1.0, above_low=True),
            "top_k": read.integer("top_k", self.top_k, -1, _LARGEST_INT32, "0 or -1 keeps all tokens"),
            "min_p": read.number("min_p", self.min_p, 0.0, 1.0),
            "seed": None if seed is None else read.seed(seed),
            "bad_words": read.words("bad_words", self.bad_words),
            "presence_penalty": read.number("presence_penalty", self.presence_penalty, -2.0, 2.0),
            "frequency_penalty": read.number("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            "repetition_penalty": read.number(
                "repetition_penalty", self.repetition_penalty, 0.0, _LARGEST_FLOAT32, above_low=True
            ),
            "logit_bias": read.bias("logit_bias", self.logit_bias),
            "allowed_token_ids": read.allowed("allowed_token_ids", self.allowed_token_ids),
        }

    def _ending(self, read: _Reader) -> dict[str, Any]:
        """Plain values of the fields that end a completion."""
        return {
            "max_tokens": read.integer(
                "max_tokens", self.max_tokens, 1, _LARGEST_INT32, "a request generates at least one token"
            ),
            "min_tokens": read.integer("min_tokens", self.min_tokens, 0, _LARGEST_INT32),
            "ignore_eos": read.flag("ignore_eos", self.ignore_eos),
            "structured_outputs": read.structured_outputs("structured_outputs", self.structured_outputs),
            "stop": read.texts("stop", self.stop),
            "stop_token_ids": read.token_ids("stop_token_ids", self.stop_token_ids),
        }

    def _reporting(self, read: _Reader, logprobs: Any) -> dict[str, Any]:
        """Plain values of the fields that say what is handed back."""
        flags = ("include_stop_str_in_output", "detokenize", "skip_special_tokens")
        numbers_of = {"logprobs": logprobs, "prompt_logprobs": self.prompt_logprobs}
        return {
            **{name: read.flag(name, getattr(self, name)) for name in flags},
            **{
                name: None if value is None else read.integer(name, value, 0, MAX_LOGPROBS)
                for name, value in numbers_of.items()
            },
            "output_kind": read.output_kind("output_kind", self.output_kind),
        }

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the token ids against a model; called when the request is added, before it meets a batch.

        Raises:
            RequestError: Some field names tokens that the model does not have; every such field is listed.
        """
        named = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": tuple(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids or (),
            **self._grammar_tokens(),
        }
        problems: list[str] = []
        for name, ids in named.items():
            unknown = [token for token in ids if token >= vocab_size]
            if unknown:
                problems.append(f"{name} names tokens {unknown[:5]}; this model has tokens 0 to {vocab_size - 1}")
        if problems:
            raise RequestError(describe("SamplingParams", problems))

    def _grammar_tokens(self) -> dict[str, Sequence[int]]:
        """Tokens that the structured output names."""
        asked = self.structured_outputs
        if asked is None:
            return {}
        bound = () if asked.bound_token_id is None else (asked.bound_token_id,)
        return {
            "structured_outputs.trigger_token_ids": asked.trigger_token_ids,
            "structured_outputs.bound_token_id": bound,
        }


def _contradictions(plain: Mapping[str, Any], broken: set[str]) -> list[str]:
    """Fields that are fine alone but not together; a field that could not be read contradicts nothing."""
    n, least, most = plain["n"], plain["min_tokens"], plain["max_tokens"]
    checks = [
        (
            {"min_tokens", "max_tokens"},
            least > most,
            f"min_tokens={least} is more than max_tokens={most}; raise max_tokens",
        ),
        (
            {"stop", "detokenize"},
            plain["stop"] and not plain["detokenize"],
            "stop looks for texts, but detokenize=False makes none; give stop_token_ids or turn detokenize on",
        ),
        (
            {"n", "temperature"},
            n > 1 and plain["temperature"] == 0,
            f"n={n} with temperature=0 would give one completion {n} times; raise temperature or ask for n=1",
        ),
        (
            {"ignore_eos", "structured_outputs"},
            plain["ignore_eos"] and plain["structured_outputs"] is not None,
            "ignore_eos goes on behind the end of a structured output, which would spoil it; leave one of the two out",
        ),
    ]
    return [problem for fields, is_wrong, problem in checks if is_wrong and not fields & broken]


class _Reader:
    """Reads fields into plain types; a field that cannot be read adds a problem and gives a harmless value.

    Attributes:
        problems: What is wrong, in words.
        broken: The fields that are.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.broken: set[str] = set()

    def alias(self, name: str, value: Any, other: str, other_value: Any) -> Any:
        """The one of two names that was given."""
        if value is not None and other_value is not None and value != other_value:
            self._refuse(name, f"{name}={value!r} and {other}={other_value!r} mean the same and differ; give one")
        return other_value if value is None else value

    def number(self, name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> float:
        if _is_number(value) and low <= value <= high and not (above_low and value == low):
            return float(value)
        least = f"{'above' if above_low else 'at least'} {low:g}"
        self._refuse(name, f"{name}={_shown(value)} must be a finite number {least} and at most {high:g}")
        return low

    def integer(self, name: str, value: Any, low: int, high: int, hint: str = "") -> int:
        if _is_integer(value) and low <= value <= high:
            return int(value)
        message = f"{name}={_shown(value)} must be an integer from {low} to {high}"
        self._refuse(name, f"{message}; {hint}" if hint else message)
        return low

    def seed(self, value: Any) -> int:
        if _is_integer(value):
            return int(value) & _UINT64
        self._refuse("seed", f"seed={_shown(value)} must be an integer; leave it out for a random one")
        return 0

    def flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self._refuse(name, f"{name}={_shown(value)} must be True or False")
        return bool(value)

    def output_kind(self, name: str, value: Any) -> RequestOutputKind:
        kinds = [kind.value for kind in RequestOutputKind]
        if isinstance(value, str) and value in kinds:
            return RequestOutputKind(value)
        self._refuse(name, f"{name}={_shown(value)} must be one of {', '.join(kinds)}")
        return RequestOutputKind.CUMULATIVE

    def texts(self, name: str, value: Any) -> tuple[str, ...]:
        """One text or several; None is none."""
        found = (value,) if isinstance(value, str) else _items(value)
        if found is not None and all(isinstance(text, str) and text for text in found):
            return found
        self._refuse(name, f"{name}={_shown(value)} must be a text or a list of texts, none of them empty")
        return ()

    def words(self, name: str, value: Any) -> tuple[str, ...]:
        """Texts that a tokenizer can encode, and that are more than space."""
        found = self.texts(name, value)
        wrong = [text for text in found if not text.strip() or not _is_well_formed(text)]
        if wrong:
            self._refuse(
                name, f"{name} holds {_shown(wrong)}; a word has visible characters and no half surrogate pair"
            )
        return found

    def token_ids(self, name: str, value: Any) -> tuple[int, ...]:
        """Several tokens; None is none."""
        found = _items(value)
        if found is not None and all(_is_integer(token) and token >= 0 for token in found):
            return tuple(int(token) for token in found)
        self._refuse(name, f"{name}={_shown(value)} must be a list of token ids, integers from 0")
        return ()

    def allowed(self, name: str, value: Any) -> tuple[int, ...] | None:
        if value is None:
            return None
        found = self.token_ids(name, value)
        if _items(value) == ():
            self._refuse(name, f"{name} is empty, so that no token could be generated; leave it out to allow all")
        return found

    def bias(self, name: str, value: Any) -> dict[int, float]:
        """Token -> number; None is none."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._refuse(name, f"{name}={_shown(value)} must be a mapping of token id to number")
            return {}
        tokens = self.token_ids(name, list(value))
        biases = [self.number(f"{name}[{token!r}]", value[token], -LARGEST_BIAS, LARGEST_BIAS) for token in value]
        return dict(zip(tokens, biases, strict=False))

    def structured_outputs(self, name: str, value: Any) -> StructuredOutputsParams | None:
        """Parameters, or a mapping of their names."""
        found, problems = read_structured_outputs(value)
        for problem in problems:
            self._refuse(name, problem)
        return found

    def _refuse(self, name: str, problem: str) -> None:
        self.broken.add(name)
        self.problems.append(problem)


def _is_number(value: Any) -> TypeGuard[float]:
    """True for a real number, numpy's included; comparisons with it refuse NaN and infinities."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def _is_integer(value: Any) -> TypeGuard[int]:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def _is_well_formed(text: str) -> bool:
    """False for a text that holds half a surrogate pair: no encoding of text can carry it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _items(value: Any) -> tuple[Any, ...] | None:
    """The members of a list of values, or None if it is no such thing."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else None


def _shown(value: Any) -> str:
    """What was given, cut short: it may be anything."""
    return reprlib.repr(value)
