"""What the sampler returns: rows on a device, and their records on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.runtime.sampling_tensors import SamplingRow


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a token in the model's own distribution, and its place from 1, best first."""

    logprob: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """The outcome of one row on the host.

    Attributes:
        token_id: The token, or -1 when there is an error.
        error: Why no token could be chosen, or "".
        is_finite: False where the model's logits define no distribution; then there is an error.
        logprobs: The token, then the alternatives best first, if the request asked for them.
    """

    token_id: int
    error: str = ""
    is_finite: bool = True
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """The outcome of all rows, still on the device.

    Attributes:
        token_ids: ``[n]`` int32, -1 in rows that failed.
        finite: ``[n]`` bool, False where the model's logits define no distribution.
        drawable: ``[n]`` bool, False also where bias, masks or penalties left none.
        logprobs: What ``sampling.top_logprobs`` returned, or None.
        accepted: ``[n]`` bool, whether the draft that a row judges is accepted; None where no row judges one.
    """

    token_ids: Tensor
    finite: Tensor
    drawable: Tensor
    logprobs: tuple[Tensor, Tensor, Tensor, Tensor] | None
    accepted: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the host needs to know, in the order in which :meth:`of` takes it."""
        return (self.token_ids, self.finite, self.drawable, *(self.logprobs or ()))

    @classmethod
    def join(cls, parts: Sequence[SampledRows]) -> SampledRows:
        """The rows of all parts, one after the other; all report the same log-probabilities or none."""
        if len(parts) == 1:
            return parts[0]
        reported = [part.logprobs for part in parts if part.logprobs is not None]
        logprobs = None
        if reported:
            chosen, ranks, best, ids = (torch.cat(columns) for columns in zip(*reported, strict=True))
            logprobs = chosen, ranks, best, ids
        has_drafts = any(part.accepted is not None for part in parts)
        return cls(
            token_ids=torch.cat([part.token_ids for part in parts]),
            finite=torch.cat([part.finite for part in parts]),
            drawable=torch.cat([part.drawable for part in parts]),
            logprobs=logprobs,
            accepted=torch.cat([part.flags() for part in parts]) if has_drafts else None,
        )

    def flags(self) -> Tensor:
        """``accepted``, False in rows that judge no draft."""
        return torch.zeros_like(self.finite) if self.accepted is None else self.accepted

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> SampledRows:
        """The rows that these tensors describe."""
        token_ids, finite, drawable, *reported = tensors
        logprobs = None
        if reported:
            chosen, ranks, best, best_ids = reported
            logprobs = chosen, ranks, best, best_ids
        return cls(token_ids=token_ids, finite=finite, drawable=drawable, logprobs=logprobs)

    def on_host(self, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """One record per row, logprobs cut to what each request asked; waits if the tensors are on a device."""
        ids, finite, drawable = self.token_ids.tolist(), self.finite.tolist(), self.drawable.tolist()
        reported = _by_token(self.logprobs, ids, [row.params.logprobs for row in rows])
        return [
            SampledToken(
                token_id=token, error=_failure(fine, possible), is_finite=fine, logprobs=values if possible else {}
            )
            for token, fine, possible, values in zip(ids, finite, drawable, reported, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Log-probabilities of known tokens, on a device or on the host.

    Attributes:
        finite: ``[n]`` bool, False where the model's logits define no distribution.
        logprobs: What ``sampling.top_logprobs`` returned.
    """

    finite: Tensor
    logprobs: tuple[Tensor, Tensor, Tensor, Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything, in the order in which :meth:`of` takes it."""
        return (self.finite, *self.logprobs)

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> ScoredRows:
        """The rows that these tensors describe."""
        finite, chosen, ranks, best, best_ids = tensors
        return cls(finite=finite, logprobs=(chosen, ranks, best, best_ids))

    def on_host(self, token_ids: Sequence[int], num_alternatives: int) -> list[dict[int, TokenLogprob]]:
        """Per row the token, then the alternatives best first; nothing where the logits are not finite."""
        found = _by_token(self.logprobs, token_ids, [num_alternatives] * len(token_ids))
        return [row if fine else {} for row, fine in zip(found, self.finite.tolist(), strict=True)]


def _by_token(
    logprobs: tuple[Tensor, Tensor, Tensor, Tensor] | None, ids: Sequence[int], wanted: Sequence[int | None]
) -> list[dict[int, TokenLogprob]]:
    """What ``sampling.top_logprobs`` returned, as one mapping per row: its token, then as many as it wanted."""
    if logprobs is None:
        return [{} for _ in ids]
    chosen, ranks, best, best_ids = (values.tolist() for values in logprobs)
    found: list[dict[int, TokenLogprob]] = []
    for number, most in enumerate(wanted):
        values: dict[int, TokenLogprob] = {}
        if most is not None:
            values[ids[number]] = TokenLogprob(chosen[number], ranks[number])
            for place, (token, value) in enumerate(zip(best_ids[number][:most], best[number], strict=False), 1):
                values.setdefault(token, TokenLogprob(value, place))
        found.append(values)
    return found


def _failure(finite: bool, drawable: bool) -> str:
    if not finite:
        return "the model's logits for this token are not finite, so that no token can be chosen"
    if not drawable:
        return "allowed_token_ids, bad_words, logit_bias, min_tokens and penalties leave no token that may be chosen"
    return ""
