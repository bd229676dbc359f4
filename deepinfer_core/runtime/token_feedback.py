"""Sampled tokens that go into the next step without passing through the host (spec engine/03 section 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deepinfer_core.ops.embedding.pending_tokens import remember_tokens, resolve_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from deepinfer_core.backend.binding import Binder
    from deepinfer_core.model.step_inputs import StepInputs


class TokenFeedback:
    """The two ends of the way, bound for one model; where tokens are kept belongs to whoever runs its steps."""

    def __init__(self, binder: Binder, compressed_map: Sequence[int], *, vocab_size: int) -> None:
        """Bind the ops.

        Args:
            binder: Of the model.
            compressed_map: Token id -> compressed id; empty for models without n-gram memory.
            vocab_size: Tokens that can be sampled.
        """
        device = binder.backend.device(binder.device_index)
        ids = torch.tensor(compressed_map or range(vocab_size), dtype=torch.int32)
        self._compressed_map = device.upload(ids)
        self._resolve = binder.bind(resolve_tokens, sizes={"V": len(ids)})
        self._remember = binder.bind(remember_tokens)

    def resolve(self, inputs: StepInputs, latest: Tensor) -> StepInputs:
        """The same step with the tokens that were pending.

        Args:
            inputs: A step.
            latest: Token sampled last for each state slot ``[slots]`` int32.
        """
        rows = inputs.ids, inputs.compressed_ids, inputs.row_sequence
        ids, compressed_ids = self._resolve(*rows, inputs.state_slots, latest, self._compressed_map)
        return replace(inputs, ids=ids, compressed_ids=compressed_ids)

    def remember(self, token_ids: Tensor, slots: Tensor, latest: Tensor) -> None:
        """Write sampled tokens ``[n]`` to the state slots ``[n]`` of their sequences in ``latest``."""
        self._remember(token_ids, slots, latest)
