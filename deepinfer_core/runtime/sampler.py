"""Logits to tokens: the stages of sampling, bound once, run when a request of the batch asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from deepinfer_core.backend.binding import Binder, BoundOp
from deepinfer_core.errors import require
from deepinfer_core.ops.sampling.apply_logit_bias import apply_logit_bias
from deepinfer_core.ops.sampling.apply_penalties import apply_penalties
from deepinfer_core.ops.sampling.apply_token_mask import apply_token_mask
from deepinfer_core.ops.sampling.finite_rows import finite_rows
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.race import race
from deepinfer_core.ops.sampling.random import DRAW
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.sampling.top_logprobs import top_logprobs
from deepinfer_core.runtime import sampling_tensors
from deepinfer_core.runtime.sampled_rows import SampledRows, ScoredRows
from deepinfer_core.runtime.sampling_tensors import FillMasks, SamplingRow
from deepinfer_core.sampling_params import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class Judge:
    """Rejection sampling of some rows.

    Attributes:
        verify: The bound op ``speculation.verify``.
        draft_logprobs: What the draft of each row was drawn from ``[n, V]``; anything in rows without one.
    """

    verify: BoundOp
    draft_logprobs: Tensor


USUAL_LOGPROBS = 20
"""Alternatives that are cheap to report; a batch in which somebody asks for more runs the op that was bound for all."""


class Sampler:
    """Chooses one token per row.

    A row's token depends on its logits, parameters, seed, position and history alone, never on the batch.
    Nothing here waits for the device. The stages, in order: bias and tokens that come too early, allowed tokens,
    penalties, temperature, top-k, top-p, min-p, draw (spec engine/05 section 8).
    """

    def __init__(self, binder: Binder, *, vocab_size: int, eos_token_id: int, races: bool = False) -> None:
        """Bind every stage.

        Args:
            binder: Of the model whose logits are sampled.
            vocab_size: Columns of the logits.
            eos_token_id: The end-of-text token, which ``min_tokens`` holds back.
            races: Draw by ``sampling.race``, so that drafts with the same random numbers mostly are the tokens, instead
                of by ``sampling.sample``.
        """
        sizes = {"V": vocab_size}
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self._upload = binder.backend.device(binder.device_index).upload
        self._finite_rows = binder.bind(finite_rows, sizes=sizes)
        self._apply_logit_bias = binder.bind(apply_logit_bias, sizes=sizes)
        self._apply_token_mask = binder.bind(apply_token_mask, sizes=sizes)
        self._apply_penalties = binder.bind(apply_penalties, sizes=sizes)
        self.greedy = binder.bind(greedy, sizes=sizes)
        self.process_logits = binder.bind(process_logits, sizes=sizes)
        self.draw = binder.bind(race if races else sample, sizes=sizes, purpose=DRAW)
        widths = sorted({min(width, vocab_size) for width in (0, USUAL_LOGPROBS, MAX_LOGPROBS)})
        self._top_logprobs = {width: binder.bind(top_logprobs, sizes=sizes, n=width) for width in widths}

    def __call__(
        self,
        logits: Tensor,
        rows: Sequence[SamplingRow],
        *,
        judge: Judge | None = None,
        num_alternatives: int | None = None,
    ) -> SampledRows:
        """Choose the next token of each row, and judge the drafts.

        Without a judge a draft is accepted when it is the token that is chosen.

        Args:
            logits: ``[n, V]`` f32 as the model gave them; not changed.
            rows: One per row of ``logits``.
            judge: Accepts and replaces the drafts of rows that draw.
            num_alternatives: Best tokens to report with each; None for as many as the rows ask.
        """
        expected = (len(rows), self.vocab_size)
        require(tuple(logits.shape) == expected, f"the sampler got logits {tuple(logits.shape)} for {expected}")
        finite = self._finite_rows(logits)
        scores = self._restrict(logits, rows)
        drawable = finite if scores is logits else finite & self._finite_rows(scores)
        chosen, accepted = self._choose(scores, rows, judge)
        token_ids = torch.where(drawable, chosen, -1)
        wanted = num_alternatives if num_alternatives is not None else most_alternatives(rows)
        return SampledRows(
            token_ids=token_ids,
            finite=finite,
            drawable=drawable,
            logprobs=self._reporter(wanted)(logits, token_ids) if wanted is not None else None,
            accepted=accepted & drawable if accepted is not None else None,
        )

    def score(self, logits: Tensor, token_ids: Sequence[int], num_alternatives: int) -> ScoredRows:
        """Log-probabilities of tokens that are known, such as those of a prompt.

        Args:
            logits: ``[n, V]`` f32 as the model gave them; not changed.
            token_ids: The token that each row was to predict.
            num_alternatives: Best tokens to report with each.
        """
        ids = self._upload(torch.tensor(token_ids, dtype=torch.int32))
        values = self._reporter(num_alternatives)(logits, ids)
        return ScoredRows(finite=self._finite_rows(logits), logprobs=values)

    def _restrict(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
        """Bias, allowed tokens and penalties; the logits themselves when nobody asks for any."""
        bias = sampling_tensors.bias(rows, self.vocab_size, self.eos_token_id)
        if bias is not None:
            logits = self._apply_logit_bias(logits, *map(self._upload, bias))
        mask = sampling_tensors.token_mask(rows, self.vocab_size, self._fill_masks)
        if mask is not None:
            logits = self._apply_token_mask(logits, self._upload(mask))
        penalties = sampling_tensors.penalties(rows, self.vocab_size)
        if penalties is not None:
            counts, in_prompt = (
                self._occurrences(penalties.in_output, logits),
                self._occurrences(penalties.in_prompt, logits),
            )
            factors = map(self._upload, (penalties.repetition, penalties.presence, penalties.frequency))
            logits = self._apply_penalties(logits, counts, in_prompt > 0, *factors)
        return logits

    @cached_property
    def _fill_masks(self) -> FillMasks:
        """Fills the masks of grammars; its library is loaded when the first grammar has been compiled."""
        from deepinfer_core.structured_output.masks import MaskFiller

        return MaskFiller().fill

    def _occurrences(self, places: Tensor, logits: Tensor) -> Tensor:
        """How often each flat index occurs, in the shape of the logits."""
        index = self._upload(places)
        counts = torch.zeros(logits.numel(), dtype=torch.int32, device=logits.device)
        return counts.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32)).view(logits.shape)

    def _choose(self, scores: Tensor, rows: Sequence[SamplingRow], judge: Judge | None) -> tuple[Tensor, Tensor | None]:
        """A token of each row, and whether its draft is accepted."""
        temperature = sampling_tensors.parameter(rows, lambda p: p.temperature, 0.0)
        drafts = sampling_tensors.drafts(rows)
        drafts = self._upload(drafts) if drafts is not None else None
        if temperature is None:
            return _equal(self.greedy(scores), drafts)
        filters = (
            sampling_tensors.parameter(rows, lambda p: max(p.top_k, 0), 0, torch.int32),
            sampling_tensors.parameter(rows, lambda p: p.top_p, 1.0),
            sampling_tensors.parameter(rows, lambda p: p.min_p, 0.0),
        )
        uploaded = (None if values is None else self._upload(values) for values in filters)
        on_device = self._upload(temperature)
        logprobs = self.process_logits(scores, on_device, *uploaded)
        numbers = self._upload(sampling_tensors.seeds(rows)), self._upload(sampling_tensors.positions(rows))
        if drafts is None or judge is None:
            return _equal(self.draw(logprobs, *numbers), drafts)
        accepted, token_ids, _ = judge.verify(logprobs, drafts, judge.draft_logprobs, *numbers)
        if all(row.params.temperature > 0 for row in rows):
            return token_ids, accepted
        best, is_drawn = self.greedy(scores), on_device > 0  # nothing is kept of how a greedy draft was chosen
        return torch.where(is_drawn, token_ids, best), torch.where(is_drawn, accepted, best == drafts)

    def _reporter(self, num_alternatives: int) -> BoundOp:
        """The narrowest bound op that reports so many, or the whole vocabulary."""
        widths = list(self._top_logprobs)
        return self._top_logprobs[next((width for width in widths if width >= num_alternatives), widths[-1])]


def most_alternatives(rows: Sequence[SamplingRow]) -> int | None:
    """Best tokens that some row wants reported, None when none wants any."""
    wanted = [row.params.logprobs for row in rows if row.params.logprobs is not None]
    return max(wanted) if wanted else None


def _equal(token_ids: Tensor, drafts: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The tokens, and whether each is the draft of its row."""
    return token_ids, None if drafts is None else token_ids == drafts
