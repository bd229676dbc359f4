"""Run steps of a bound model over its caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.model.draft import DraftInputs
from deepinfer_core.ops.embedding.pending_tokens import PENDING
from deepinfer_core.runtime.batch import SequenceRows, int32_row, step_inputs
from deepinfer_core.runtime.captured import Bucket, CapturedDecode

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.backend.binding import BoundOp
    from deepinfer_core.model.draft import DraftModule
    from deepinfer_core.model.step_inputs import KVCaches, Recorder, StepContext
    from deepinfer_core.runtime.model import BoundModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Greedy drafts of one block per sequence.

    Attributes:
        tokens: ``[B, block]`` int32.
        logits: After the Markov correction ``[B, block, V]``.
        hidden: Before the final draft norm ``[B, block, H]``.
        confidence_logits: ``[B, block]``.
        confidence: Probability that the token is accepted ``[B, block]``.
    """

    tokens: Tensor
    logits: Tensor
    hidden: Tensor
    confidence_logits: Tensor
    confidence: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRows:
    """What a forward pass returns.

    Attributes:
        rows: Normed hidden rows ``[R, H]``; a later decode step may overwrite those of a decode step.
        lengths: How many of them belong to each sequence: all rows of its chunk, or its last ones.
        num_padded: Rows that were computed besides, for nobody.
    """

    rows: Tensor
    lengths: tuple[int, ...]
    num_padded: int = 0


class Executor:
    """One model, one set of caches; a step is one forward pass."""

    def __init__(
        self,
        model: BoundModel,
        caches: KVCaches,
        *,
        drafting: bool = False,
        truncation: PromptTruncation = NO_TRUNCATION,
    ) -> None:
        """Take a bound model and caches that were allocated for it.

        Args:
            model: The model.
            caches: Written by every step.
            drafting: Also store the draft module's context keys in every step.
            truncation: How much of prompts the decoder layers see.
        """
        self.model = model
        self.caches = caches
        self._drafting = drafting
        self._truncation = truncation
        self._latest = torch.zeros(caches.slot_pool.shape[0], dtype=torch.int32, device=model.device.torch_device)
        self._captured = (
            CapturedDecode(model, caches, self._latest, drafting=drafting) if model.captures_graphs else None
        )

    def forward(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> HiddenRows:
        """One forward pass, as the engine wants its rows."""
        hidden, step = self.run(sequences, prefill=prefill)
        lengths = step.inputs.returned_lengths if prefill else tuple(len(s.token_ids) for s in sequences)
        padded = Bucket.of(sequences).rows - sum(lengths) if self._captured is not None and not prefill else 0
        return HiddenRows(rows=hidden, lengths=lengths, num_padded=padded)

    @torch.inference_mode()
    def remember(self, token_ids: Tensor, slots: Sequence[int]) -> None:
        """Keep sampled tokens ``[n]`` for the steps whose rows of these state slots are pending."""
        self.model.feedback.remember(token_ids, self.model.device.upload(int32_row(list(slots))), self._latest)

    @torch.inference_mode()
    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole state slots, behind the steps so far: ``(source, destination)``, all destinations distinct."""
        if pairs:
            self.model.pool_copies(self.caches.slot_pool, self.model.device.upload(int32_row([*map(list, pairs)])))

    @torch.inference_mode()
    def run(
        self, sequences: Sequence[SequenceRows], *, prefill: bool, record: Recorder | None = None
    ) -> tuple[Tensor, StepContext]:
        """One forward pass; returns normed hidden rows ``[T, H]`` and the step's shared values.

        Decode steps are replayed where the backend records them: their results are overwritten by the next one.
        """
        if self._captured is not None and not prefill and record is None:
            return self._captured.run(sequences)
        hidden, step = self._run_eagerly(sequences, prefill, record)
        if self._drafting:
            self.model.graph.write_draft_context(step)
        return hidden, step

    def _run_eagerly(
        self, sequences: Sequence[SequenceRows], prefill: bool, record: Recorder | None
    ) -> tuple[Tensor, StepContext]:
        model = self.model
        inputs = step_inputs(
            sequences, prefill=prefill, lookback=model.lookback, device=model.device, truncation=self._truncation
        )
        if not prefill and any(PENDING in sequence.token_ids for sequence in sequences):
            inputs = model.feedback.resolve(inputs, self._latest)
        step = model.graph.begin(inputs, self.caches, record)
        return model.graph.forward(step), step

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of hidden rows."""
        return self.model.graph.logits(hidden)

    def features(self, step: StepContext) -> tuple[Tensor, ...]:
        """Mean streams entering each draft target layer, in the config's order."""
        draft = self.model.architecture.draft
        return tuple(step.features[layer] for layer in draft.target_layer_ids) if draft else ()

    @torch.inference_mode()
    def draft(self, module: DraftModule, anchors: Sequence[tuple[int, int]], slots: Sequence[int]) -> Drafts:
        """Draft greedily, one block per sequence.

        Args:
            module: The graph's draft module.
            anchors: Position and token of the last sampled token of each sequence.
            slots: Their state slots; the draft rings hold the context before the anchor.
        """
        rows = module.forward(self._draft_inputs(anchors, slots), self.caches.draft_window)
        block, count = len(rows.hidden) // max(len(anchors), 1), len(anchors)
        base, hidden = rows.base_logits.unflatten(0, (count, block)), rows.hidden.unflatten(0, (count, block))
        previous = self.model.device.upload(int32_row([token for _, token in anchors]))
        return _choose(module, self.model.sampler.greedy, base, hidden, previous)

    def _draft_inputs(self, anchors: Sequence[tuple[int, int]], slots: Sequence[int]) -> DraftInputs:
        draft = self.model.architecture.draft
        block, noise = (draft.block_size, draft.noise_token_id) if draft else (0, 0)
        upload = self.model.device.upload
        return DraftInputs(
            ids=upload(int32_row([i for _, token in anchors for i in (token, *[noise] * (block - 1))])),
            positions=upload(int32_row([p + j for p, _ in anchors for j in range(block)])),
            row_sequence=upload(int32_row([index for index in range(len(anchors)) for _ in range(block)])),
            state_slots=upload(int32_row(list(slots))),
        )


def _choose(module: DraftModule, greedy: BoundOp, base: Tensor, hidden: Tensor, previous: Tensor) -> Drafts:
    """Row by row: each drafted token sets the Markov correction of the next."""
    tokens, logits, confidence_logits, confidence = [], [], [], []
    for row in range(base.shape[1]):
        logit, probability = module.confidence(hidden[:, row], previous, row)
        corrected = module.correct(base[:, row], previous)
        previous = greedy(corrected.float())
        tokens.append(previous)
        logits.append(corrected)
        confidence_logits.append(logit)
        confidence.append(probability)
    return Drafts(
        tokens=torch.stack(tokens, 1),
        logits=torch.stack(logits, 1),
        hidden=hidden,
        confidence_logits=torch.stack(confidence_logits, 1),
        confidence=torch.stack(confidence, 1),
    )
