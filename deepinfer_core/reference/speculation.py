"""Small maps of the draft module; definitions are at the ops."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.ops.speculation.confidence import LARGEST_LOGIT, MIN_TEMPERATURE
from deepinfer_core.reference.products import product


def run_draft_features(streams: Tensor) -> Tensor:
    """``speculation.draft_features``."""
    return streams.float().mean(1).to(streams.dtype)


def run_markov_logits(base: Tensor, previous: Tensor, embedding: Tensor, head: Tensor) -> Tensor:
    """``speculation.markov_logits``."""
    rows = embedding.index_select(0, previous).float()
    return product(rows, head.float().t()).add_(base)


def run_confidence(
    hidden: Tensor, previous: Tensor, embedding: Tensor, weight: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``speculation.confidence``: one sum per row, in the same order for any number of rows."""
    features = torch.cat([hidden.float(), embedding.index_select(0, previous).float()], 1)
    logit = (features * weight.float()).sum(1)
    return logit, (logit / max(temperature, MIN_TEMPERATURE)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT).sigmoid()
