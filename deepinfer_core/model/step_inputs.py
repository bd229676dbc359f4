"""The named tensors of one step, and what its layers hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from deepinfer_core.errors import require

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.tensor import Cache

Recorder = Callable[[str, "Tensor"], None]
"""Receives named intermediate tensors of a traced run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What one step feeds to the graph; int32 tensors on the device.

    Rows are tokens; rows of one sequence are contiguous and ascending. In decode a sequence has few rows and
    there may be padding rows (sequence -1); in prefill it has a chunk of its prompt and the host knows the lengths.

    Attributes:
        ids: Token of each row ``[T]``.
        compressed_ids: Compressed id of each row ``[T]`` (-1: not text).
        positions: Absolute position of each row ``[T]``.
        row_sequence: Index of each row's sequence ``[T]``.
        ngram_history: Compressed ids before the first row ``[B, max_ngram - 1]``, latest first.
        state_slots: State slot of each sequence ``[B]``.
        block_table: Cache blocks of each sequence ``[B, J]``, 0 where there is none.
        context_lengths: Tokens of each sequence including this step ``[B]``.
        query_lengths: Rows of each sequence ``[B]``.
        host_query_lengths: The same on the host in prefill, None in decode.
        host_context_lengths: Context lengths on the host in prefill, None in decode.
        window_start: First position of each sequence that has window keys ``[B]``; None: 0 for all. Prefill only.
        store_from: First position of each sequence that stores the entry which it closes ``[B]``; None: 0 for all.
        decoder: What the decoder layers run on where that is not the same; None: on these inputs. Prefill only.
    """

    ids: Tensor
    compressed_ids: Tensor
    positions: Tensor
    row_sequence: Tensor
    ngram_history: Tensor
    state_slots: Tensor
    block_table: Tensor
    context_lengths: Tensor
    query_lengths: Tensor
    host_query_lengths: tuple[int, ...] | None = None
    host_context_lengths: tuple[int, ...] | None = None
    window_start: Tensor | None = None
    store_from: Tensor | None = None
    decoder: DecoderInputs | None = None

    @property
    def is_prefill(self) -> bool:
        return self.host_query_lengths is not None

    @property
    def returned(self) -> StepInputs:
        """Inputs of the rows that ``ModelGraph.forward`` returns: the last ones of each chunk, or all."""
        return self if self.decoder is None else self.decoder.inputs

    @property
    def returned_lengths(self) -> tuple[int, ...]:
        """Returned rows of each sequence in prefill: so many at the end of its chunk, one at least."""
        lengths = self.returned.host_query_lengths
        require(lengths is not None, "the host knows the rows of prefill steps only")
        return lengths or ()

    @property
    def last_rows(self) -> tuple[int, ...]:
        """Number of each sequence's last row among the returned rows, in prefill: the one to sample."""
        return tuple(end - 1 for end in accumulate(self.returned_lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderInputs:
    """What the decoder layers of a prompt step run on where prompts are truncated (spec attention/05 A.1).

    Attributes:
        inputs: The retained rows as a step of their own, the last ones of each chunk; ``window_start`` is raised to
            the first kept token. ``ngram_history`` is that of the whole step.
        rows: Number of each retained row in the whole step ``[R]``; None when all are retained, so that only the
            windows are shorter.
    """

    inputs: StepInputs
    rows: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCaches:
    """Views of the pools by layer; the pools themselves are opaque bytes.

    Attributes:
        block_pool: ``[blocks, bytes per block]`` uint8.
        slot_pool: ``[state slots, bytes per slot]`` uint8.
        main: Compressed entries of each source layer.
        index: Index keys of each source layer.
        window: Window ring of each layer.
        draft_window: Window ring of each draft layer.
        compressor: Gates and values ``[slots, ring, 2, D]`` of each layer that pairs tokens.
    """

    block_pool: Tensor
    slot_pool: Tensor
    main: Mapping[int, Cache]
    index: Mapping[int, Cache]
    window: Mapping[int, Cache]
    draft_window: Mapping[int, Cache]
    compressor: Mapping[int, Tensor]


@dataclass(slots=True, kw_only=True)
class EntryMetadata:
    """Per compression ratio: what rows see and write, and in prefill where the gathered context comes from."""

    visible: Tensor
    slots: Tensor
    positions: Tensor
    gather_slots: Tensor | None = None
    starts: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class StepContext:
    """One forward pass: inputs, derived metadata, and the values that layers share.

    Segments of the source maps are contiguous, so one slot per shared value is enough
    (spec attention/00 section 4).

    Attributes:
        inputs: The step.
        caches: Written by this step.
        window_slots: Ring slots (decode) or buffer rows (prefill) that each row reads ``[T, W]``.
        window_stores: Ring slot that each row writes ``[T]``.
        history_slots: Ring slots of the window history (prefill) ``[B W]``.
        entries: Metadata per compression ratio.
        record: Receives intermediate tensors, or None.
        selected: Entries selected by the nearest index source ``[T, K]``.
        context_slots: ``selected`` as cache slots (decode) or rows of ``context_rows`` (prefill).
        candidates: Candidate blocks of the candidate source.
        context_rows: Gathered entries of the nearest source (prefill).
        latent: Normed, unrotated entries of the nearest source ``[T, D]``.
        features: Mean streams entering each draft target layer ``[T, H]``.
        entries_written: The entries and index keys of this step are in the caches already: those of more rows than
            these.
        decoder: What the decoder layers share where they run on other rows or windows, with the same ``features``.
    """

    inputs: StepInputs
    caches: KVCaches
    window_slots: Tensor
    window_stores: Tensor
    history_slots: Tensor | None
    entries: Mapping[int, EntryMetadata]
    record: Recorder | None = None
    selected: Tensor | None = None
    context_slots: Tensor | None = None
    candidates: Tensor | None = None
    context_rows: Tensor | None = None
    latent: Tensor | None = None
    features: dict[int, Tensor] = field(default_factory=dict)
    entries_written: bool = False
    decoder: StepContext | None = None

    @property
    def returned(self) -> StepContext:
        """Shared values of the rows that ``ModelGraph.forward`` returns."""
        return self if self.decoder is None else self.decoder

    def trace(self, name: str, value: Tensor) -> None:
        """Hand a tensor to the recorder, if there is one."""
        if self.record is not None:
            self.record(name, value)
