"""What a bound model takes on its device besides weights and caches, known before the caches are allocated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.backend.interface import PlanRequest
from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.runtime.activations import StepSize, activation_bytes

if TYPE_CHECKING:
    from deepinfer_core.backend.binding import BoundOp
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.numerics import Numerics

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWorkspace:
    """What steps of one kind take at most.

    Attributes:
        activation_bytes: Tensors that ops return and that are needed at once.
        scratch_bytes: What the op that takes most takes for itself; ops run one after the other.
        scratch_op: Its name, or "" where no op takes anything.
    """

    activation_bytes: int
    scratch_bytes: int
    scratch_op: str

    @property
    def total_bytes(self) -> int:
        return self.activation_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What an engine with given limits declares.

    Attributes:
        prefill: Steps that read prompts.
        decode: Decode steps.
        keeps_both: Recorded decode steps have memory of their own, which prefill steps cannot use.
        unstated: Ops whose implementations do not state what they take; nothing is counted for them.
    """

    prefill: StepWorkspace
    decode: StepWorkspace
    keeps_both: bool
    unstated: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        both = self.prefill.total_bytes, self.decode.total_bytes
        return sum(both) if self.keeps_both else max(both)

    def __str__(self) -> str:
        """One line for logs and errors."""
        kinds = {"prefill": self.prefill, "decode": self.decode}
        words = [
            f"{name} {step.activation_bytes / _GIB:.2f} GiB of activations"
            + (f" and {step.scratch_bytes / _GIB:.2f} GiB for {step.scratch_op}" if step.scratch_op else "")
            for name, step in kinds.items()
        ]
        rest = f"; {len(self.unstated)} ops do not state what they take" if self.unstated else ""
        return f"{self.total_bytes / _GIB:.2f} GiB ({', '.join(words)}{rest})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The largest steps that an engine plans.

    Attributes:
        max_num_batched_tokens: Rows of a step that reads prompts.
        max_num_seqs: Sequences of a step.
        max_model_len: Tokens of a sequence.
        rows_per_sequence: Rows of a sequence in a decode step.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    rows_per_sequence: int = 1

    @property
    def prefill(self) -> StepSize:
        """One sequence of full length that goes on, and others that begin with the rows that are left."""
        rows = self.max_num_batched_tokens
        context = _whole_blocks(self.max_model_len)
        sequences = min(self.max_num_seqs, rows)
        return StepSize(rows=rows, sequences=sequences, max_context=context, context_tokens=context + rows)

    @property
    def decode(self) -> StepSize:
        """Sizes are rounded up to powers of two, as those of recorded steps are (``runtime.captured``)."""
        sequences = _power_of_two(self.max_num_seqs)
        blocks = _power_of_two(-(-self.max_model_len // BLOCK_TOKENS))
        rows = sequences * _power_of_two(self.rows_per_sequence)
        return StepSize(rows=rows, sequences=sequences, max_context=blocks * BLOCK_TOKENS)


def plan_workspace(
    architecture: ModelArchitecture,
    numerics: Numerics,
    bound: Iterable[BoundOp],
    limits: EngineLimits,
    *,
    keeps_both: bool,
) -> Workspace:
    """Sum up what steps take at most.

    Args:
        architecture: The model.
        numerics: Its arithmetic.
        bound: Every op that was bound for it.
        limits: The largest steps.
        keeps_both: See :class:`Workspace`.
    """
    ops = tuple(bound)
    return Workspace(
        prefill=_step_workspace(architecture, numerics, ops, limits.prefill),
        decode=_step_workspace(architecture, numerics, ops, limits.decode),
        keeps_both=keeps_both,
        unstated=tuple(sorted({one.op.name for one in ops if one.workspace is None})),
    )


def _step_workspace(
    architecture: ModelArchitecture, numerics: Numerics, ops: tuple[BoundOp, ...], size: StepSize
) -> StepWorkspace:
    request = PlanRequest(size.rows, size.sequences, size.max_context, size.prefill)
    scratch = [(one.workspace(request), one.op.name) for one in ops if one.workspace is not None]
    most, name = max(scratch, default=(0, ""))
    return StepWorkspace(
        activation_bytes=activation_bytes(architecture, numerics, size),
        scratch_bytes=most,
        scratch_op=name if most else "",
    )


def _whole_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
