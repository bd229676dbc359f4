"""What the requests of a batch ask of the sampler, as host tensors; None for a stage that nobody asks for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer_core.errors import RequestError, require
from deepinfer_core.ops.sampling.apply_token_mask import WORD_BITS, num_mask_words
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from deepinfer_core.structured_output.matcher import GrammarMatcher

FillMasks = Callable[[Sequence["GrammarMatcher | None"], "NDArray[np.int32]"], object]
"""See ``structured_output.masks.MaskFiller.fill``."""

NO_DRAFT = -1
"""Where a row judges no draft."""
_SEED_STEP = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples of it stay far from each other and from small seeds of other requests."""


def completion_seed(seed: int, index: int) -> int:
    """The uint64 that completion ``index`` of a request draws with: ``(seed + index * 0x9E3779B97F4A7C15) mod 2^64``.

    The first completion has the seed of the request, so it is what a request for one completion gives.
    """
    return (seed + index * _SEED_STEP) % 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """One row of logits: which token it produces, and for whom.

    Attributes:
        params: What the request asks.
        seed: The request's uint64, its own or drawn when the request was added.
        position: Index in the sequence, prompt included, of the token that is produced.
        prompt_token_ids: The prompt; read for ``repetition_penalty`` only.
        output_token_ids: What was generated so far; read for penalties, ``min_tokens`` and ``bad_words``.
        bad_words: The ``bad_words`` of ``params`` as sequences of tokens, none of them empty.
        grammar: Where the output stands in its grammar; None without one.
        assumed: Drafts before this row in its block, of which ``grammar`` does not know.
        draft: The draft that this row judges, or -1.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = ()
    grammar: GrammarMatcher | None = None
    assumed: tuple[int, ...] = ()
    draft: int = NO_DRAFT

    @property
    def constraint(self) -> GrammarMatcher | None:
        """The grammar, where it forbids something now; of a row behind drafts, its block tells."""
        if self.grammar is None or self.assumed or not self.grammar.is_constrained:
            return None
        return self.grammar


def parameter(
    rows: Sequence[SamplingRow], read: Callable[[SamplingParams], float], off: float, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """One number per row, or None when it is ``off`` in all of them."""
    values = [read(row.params) for row in rows]
    return torch.tensor(values, dtype=dtype) if any(value != off for value in values) else None


def seeds(rows: Sequence[SamplingRow]) -> Tensor:
    """The bit patterns of the seeds ``[n]`` int64."""
    return torch.tensor([row.seed - 2**64 if row.seed >= 2**63 else row.seed for row in rows], dtype=torch.int64)


def positions(rows: Sequence[SamplingRow]) -> Tensor:
    """Indices ``[n]`` int32 of the tokens that are produced."""
    return torch.tensor([row.position for row in rows], dtype=torch.int32)


def drafts(rows: Sequence[SamplingRow]) -> Tensor | None:
    """The drafts that rows judge ``[n]`` int32, or None when there are none."""
    if all(row.draft == NO_DRAFT for row in rows):
        return None
    return torch.tensor([row.draft for row in rows], dtype=torch.int32)


def bias(rows: Sequence[SamplingRow], vocab_size: int, eos_token_id: int) -> tuple[Tensor, Tensor] | None:
    """Ids and values for ``sampling.apply_logit_bias``: the requests' biases, and -inf for what must not come now."""
    if not any(_has_bias(row) for row in rows):
        return None
    wanted = [{**row.params.logit_bias, **dict.fromkeys(_forbidden(row, eos_token_id), -torch.inf)} for row in rows]
    width = max(len(values) for values in wanted)
    if not width:
        return None
    ids, amounts = torch.full((len(rows), width), -1, dtype=torch.int32), torch.zeros(len(rows), width)
    for number, values in enumerate(wanted):
        require(
            all(0 <= t < vocab_size for t in values),
            f"bias of tokens {list(values)} reached a vocabulary of {vocab_size}",
        )
        ids[number, : len(values)] = torch.tensor(list(values), dtype=torch.int32)
        amounts[number, : len(values)] = torch.tensor(list(values.values()), dtype=torch.float32)
    return ids, amounts


def _has_bias(row: SamplingRow) -> bool:
    """Whether the row may have biases; quick, because it is asked for every row of every step."""
    params = row.params
    return bool(params.logit_bias or row.bad_words) or len(row.output_token_ids) < params.min_tokens


def _forbidden(row: SamplingRow, eos_token_id: int) -> tuple[int, ...]:
    return (*_too_early(row, eos_token_id), *_last_of_bad_words(row))


def _last_of_bad_words(row: SamplingRow) -> list[int]:
    """Tokens that would complete a bad word; its first tokens must be the last ones of the output."""
    output = row.output_token_ids
    return [
        word[-1]
        for word in row.bad_words
        if len(word) <= len(output) + 1 and tuple(output[len(output) + 1 - len(word) :]) == tuple(word[:-1])
    ]


def _too_early(row: SamplingRow, eos_token_id: int) -> tuple[int, ...]:
    """Tokens that would end the request before ``min_tokens``."""
    is_early = len(row.output_token_ids) < row.params.min_tokens
    return (eos_token_id, *row.params.stop_token_ids) if is_early else ()


def token_mask(rows: Sequence[SamplingRow], vocab_size: int, fill: FillMasks) -> Tensor | None:
    """Words for ``sampling.apply_token_mask``; a request without a list or a grammar allows all tokens.

    Args:
        rows: The rows.
        vocab_size: Columns of the logits.
        fill: Writes what grammars allow into rows of words. A grammar that cannot go on allows nothing.
    """
    constraints = [row.constraint for row in rows]
    has_blocks = any(row.grammar is not None and row.assumed for row in rows)
    has_grammars = has_blocks or any(constraint is not None for constraint in constraints)
    if not has_grammars and all(row.params.allowed_token_ids is None for row in rows):
        return None
    mask = torch.full((len(rows), num_mask_words(vocab_size)), -1, dtype=torch.int32)
    if has_grammars:
        fill(constraints, mask.numpy())
    if has_blocks:
        _fill_blocks(rows, mask.numpy())
    for number, row in enumerate(rows):
        if row.params.allowed_token_ids is not None:
            mask[number] &= _mask_words(row.params.allowed_token_ids, vocab_size)
    return mask


def _fill_blocks(rows: Sequence[SamplingRow], mask: NDArray[np.int32]) -> None:
    """Masks of rows behind drafts: what the grammar allows if these are accepted.

    Nothing is written behind the first draft that may not come: verification cannot get there.
    """
    for number, row in enumerate(rows):
        is_last = number + 1 == len(rows) or not rows[number + 1].assumed
        if row.grammar is not None and row.assumed and is_last:
            _fill_block(row.grammar, row.assumed, mask[number - len(row.assumed) : number + 1])


def _fill_block(grammar: GrammarMatcher, assumed: Sequence[int], rows: NDArray[np.int32]) -> None:
    """Fill the masks of one block; a grammar that cannot go on allows nothing."""
    from deepinfer_core.structured_output.masks import fill_draft_masks

    try:
        fill_draft_masks(grammar, assumed, rows)
    except RequestError:
        rows.fill(0)


def _mask_words(allowed: Iterable[int], vocab_size: int) -> Tensor:
    ids = torch.tensor(list(allowed), dtype=torch.int64)
    outside = ids[(ids < 0) | (ids >= vocab_size)].tolist()
    require(not outside, f"allowed tokens {outside[:5]} reached a vocabulary of {vocab_size}")
    bits = torch.zeros(num_mask_words(vocab_size), WORD_BITS, dtype=torch.int64)
    bits[ids // WORD_BITS, ids % WORD_BITS] = 1
    words = (bits << torch.arange(WORD_BITS)).sum(-1)
    return torch.where(words < 2**31, words, words - 2**32).int()


@dataclass(frozen=True, slots=True)
class Penalties:
    """Factors of each row, and where tokens occurred, as flat indices ``row * V + token``.

    Only rows that ask for a penalty have entries. Ids beyond the vocabulary (image places) are left out.
    """

    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    in_prompt: Tensor
    in_output: Tensor


def penalties(rows: Sequence[SamplingRow], vocab_size: int) -> Penalties | None:
    """Factors and occurrences for ``sampling.apply_penalties``."""
    asking = [number for number, row in enumerate(rows) if has_penalty(row.params)]
    if not asking:
        return None
    return Penalties(
        torch.tensor([row.params.repetition_penalty for row in rows], dtype=torch.float32),
        torch.tensor([row.params.presence_penalty for row in rows], dtype=torch.float32),
        torch.tensor([row.params.frequency_penalty for row in rows], dtype=torch.float32),
        _flat(asking, [rows[number].prompt_token_ids for number in asking], vocab_size),
        _flat(asking, [rows[number].output_token_ids for number in asking], vocab_size),
    )


def has_penalty(params: SamplingParams) -> bool:
    """Whether the sampler counts the tokens of these requests."""
    return (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)


def _flat(numbers: Sequence[int], histories: Sequence[Sequence[int]], vocab_size: int) -> Tensor:
    """Flat indices ``[n]`` int64 of the tokens of rows; quick where the histories are arrays of int64."""
    tokens = array("q")
    for history in histories:
        tokens.extend(history)
    if not tokens:
        return torch.empty(0, dtype=torch.int64)
    ids = torch.frombuffer(tokens, dtype=torch.int64)
    rows = torch.tensor(numbers).repeat_interleave(torch.tensor([len(history) for history in histories]))
    return (rows * vocab_size + ids)[(ids >= 0) & (ids < vocab_size)]
