"""The ops of speculative decoding that are not part of the model, bound for one."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from deepinfer_core.errors import require
from deepinfer_core.ops.sampling.random import DRAFT
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.speculation.accept_prefix import accept_prefix
from deepinfer_core.ops.speculation.verify import verify

if TYPE_CHECKING:
    from deepinfer_core.backend.binding import Binder, BoundOp
    from deepinfer_core.config.speculation import DraftSettings
    from deepinfer_core.runtime.sampler import Sampler


class DraftingOps:
    """Bound ops, and the settings that they were bound for.

    Attributes:
        settings: How drafts are made.
        accept_prefix: Counts the drafts that stand.
        verify: Judges drafts by rejection sampling; None where they are coupled with the tokens.
        samples: Draws each draft of a block.
    """

    def __init__(self, binder: Binder, settings: DraftSettings, sampler: Sampler) -> None:
        """Bind them.

        Args:
            binder: Of the model.
            settings: How drafts are made.
            sampler: Chooses the model's tokens; coupled drafts are drawn as it draws.
        """
        self.settings = settings
        sizes, drafts = {"V": sampler.vocab_size}, range(settings.num_drafts)
        self.accept_prefix = binder.bind(accept_prefix)
        self.verify: BoundOp | None = None
        self.samples = [sampler.draw for _ in drafts]
        if not settings.is_coupled:
            self.verify = binder.bind(verify, sizes=sizes)
            self.samples = [binder.bind(sample, sizes=sizes, purpose=DRAFT + index) for index in drafts]

    def resized(self, settings: DraftSettings) -> DraftingOps:
        """The same ops with other settings, for as many drafts at most and drafts that are drawn in the same way."""
        require(settings.num_drafts <= len(self.samples), f"{settings.num_drafts} drafts of {len(self.samples)} bound")
        require(settings.is_coupled == self.settings.is_coupled, "drafts that are drawn in another way need other ops")
        ops = copy(self)
        ops.settings = settings
        return ops

    def draw_offset(self, index: int) -> int:
        """Draft ``index`` behind the token at position ``a`` is drawn with the numbers of position ``a`` plus this."""
        return index + 1 if self.settings.is_coupled else 0
