"""Feeds sequences to a bound model step by step, and knows which cached rows a later step may still read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prompt_truncation import NO_TRUNCATION, PromptTruncation
from deepinfer_core.model.step_inputs import StepInputs
from deepinfer_core.ops.kv_cache.records import record_views
from deepinfer_core.ops.kv_cache.store import load
from deepinfer_core.runtime.batch import SequenceRows, step_inputs
from deepinfer_core.runtime.executor import Drafts, Executor
from deepinfer_core.runtime.model import BoundModel
from deepinfer_core.tensor import Cache

POISON = 0xFF
"""In every byte this is NaN for FP8 values, E4M3 scales and compressor rows, and infinity for power-of-two scales."""


@dataclass
class FedSequence:
    """A sequence under test.

    Attributes:
        tokens: Its text, as far as it is known.
        slot: State slot.
        blocks: Cache blocks in order.
        length: Tokens whose rows the caches hold and that are not taken back.
        images: Positions whose token counts as an image's, which the n-gram memory must not see.
        window_start: First position with window keys, where a cached prefix is replayed.
        store_from: Entries that close before it are cached already.
        all_rows: Its prompt is not truncated.
    """

    tokens: list[int]
    slot: int
    blocks: list[int]
    length: int = 0
    images: frozenset[int] = frozenset()
    window_start: int = 0
    store_from: int = 0
    all_rows: bool = False


class Driver:
    """One model with caches of its own; sequences get state slots 1, 2, ... and blocks in ascending order.

    Where prompts are truncated, the tokens of a sequence are the whole prompt.
    """

    def __init__(
        self,
        model: BoundModel,
        *,
        num_slots: int = 8,
        blocks_each: int = 1,
        truncation: PromptTruncation = NO_TRUNCATION,
    ) -> None:
        self.model = model
        self.truncation = truncation
        self.caches = model.allocate(num_slots * blocks_each, num_slots)
        self.executor = Executor(model, self.caches, drafting=model.graph.draft is not None)
        self._blocks_each = blocks_each
        self._num_sequences = 0

    def sequence(self, tokens: list[int], images: frozenset[int] = frozenset()) -> FedSequence:
        """A new sequence with a state slot and blocks that nobody else has."""
        first = self._num_sequences * self._blocks_each + 1
        self._num_sequences += 1
        blocks = list(range(first, first + self._blocks_each))
        return FedSequence(list(tokens), self._num_sequences, blocks, images=images)

    def feed(self, *parts: tuple[FedSequence, int], prefill: bool = False, padding: int = 0) -> list[Tensor]:
        """One step with the next ``count`` tokens of every sequence; logits ``[count, V]`` of each.

        A step of truncated prompts gives the last rows of each chunk only, as many as the decoder layers ran on.

        Args:
            *parts: Sequences and counts, in batch order.
            prefill: As prompt chunks, otherwise as decode rows.
            padding: Decode rows and sequences that pad the step, as a captured graph would have them.
        """
        rows = [self._rows(sequence, count) for sequence, count in parts]
        counts = [count for _, count in parts]
        if prefill and self.truncation.is_on:
            inputs = self.inputs(rows, prefill=True)
            hidden, counts = self._run(inputs), list(inputs.returned_lengths)
        elif padding:
            hidden = self._run(_padded(self.inputs(rows, prefill=False), padding))
        else:
            hidden = self.executor.run(rows, prefill=prefill)[0]
        for sequence, count in parts:
            sequence.length += count
        return list(self.executor.logits(hidden)[: sum(counts)].split(counts))

    def speculate(self, *parts: tuple[FedSequence, list[int], int], padding: int = 0) -> list[Tensor]:
        """A verification step: the next token and wrong or right drafts behind it; only some rows are kept.

        Args:
            *parts: Sequence, drafted tokens, and number of drafts that are accepted (they must be the true tokens).
            padding: See ``feed``.

        Returns:
            Logits of the kept rows of each sequence.
        """
        kept_rows = []
        texts = [list(sequence.tokens) for sequence, _, _ in parts]
        for sequence, drafts, _ in parts:
            sequence.tokens[sequence.length + 1 :] = drafts
        logits = self.feed(*((sequence, 1 + len(drafts)) for sequence, drafts, _ in parts), padding=padding)
        for (sequence, drafts, accepted), text, rows in zip(parts, texts, logits, strict=True):
            sequence.tokens = text
            sequence.length -= len(drafts) - accepted
            kept_rows.append(rows[: 1 + accepted])
        return kept_rows

    def draft(self, *anchors: tuple[FedSequence, int]) -> Drafts:
        """Greedy drafts behind a sampled token of each sequence; the token itself is not fed."""
        module = self.model.graph.draft
        assert module is not None
        places = [(sequence.length, token) for sequence, token in anchors]
        return self.executor.draft(module, places, [sequence.slot for sequence, _ in anchors])

    def copy(self, source: FedSequence, target: FedSequence) -> None:
        """Give ``target`` the cached rows of ``source`` in its own slot and blocks."""
        self.caches.slot_pool[target.slot] = self.caches.slot_pool[source.slot]
        self.caches.block_pool[target.blocks] = self.caches.block_pool[source.blocks]
        target.length = source.length

    def cached(self, sequence: FedSequence) -> dict[str, Tensor]:
        """Values of every row that a later step of the sequence may read, by cache and layer."""
        device = self.model.device.torch_device
        found = {
            name: load.reference(slots.to(device), cache, out="f64")
            for name, cache, slots in self._live_records(sequence)
        }
        return found | {name: ring[row] for name, ring, row in self._live_ring_rows(sequence)}

    def poison_dead(self, *sequences: FedSequence) -> None:
        """Overwrite all bytes that no later step of these sequences may read, the dummy block and slot included."""
        kept: list[tuple[Tensor, object, Tensor]] = []
        for sequence in sequences:
            for _, cache, slots in self._live_records(sequence):
                place = (slots.long() // cache.rows_per_block, slots.long() % cache.rows_per_block)
                kept += [(view, place, view[place].clone()) for view in record_views(cache)]
            kept += [(ring, row, ring[row].clone()) for _, ring, row in self._live_ring_rows(sequence)]
        self.caches.block_pool.fill_(POISON)
        self.caches.slot_pool.fill_(POISON)
        for view, place, rows in kept:
            view[place] = rows

    def window_record(self, sequence: FedSequence, position: int, layer: int = 0) -> list[Tensor]:
        """Bytes (values, scales) of one position in a window ring, to be changed in place."""
        cache = self.caches.window[layer]
        return [view[sequence.slot, position % cache.rows_per_block] for view in record_views(cache)]

    def _live_records(self, sequence: FedSequence) -> Iterator[tuple[str, Cache, Tensor]]:
        """Paged entries of closed groups; window rows that the next token or the next draft block attends to."""
        window = self.model.architecture.attention.sliding_window
        for kind, caches in (("main", self.caches.main), ("index", self.caches.index)):
            for layer, cache in caches.items():
                entries = torch.arange(sequence.length * cache.rows_per_block // BLOCK_TOKENS)
                blocks = torch.tensor(sequence.blocks)[entries // cache.rows_per_block]
                yield f"{kind}.{layer}", cache, _flat(cache, blocks, entries)
        for kind, rings, reach in (
            ("window", self.caches.window, window - 1),
            ("draft_window", self.caches.draft_window, window),
        ):
            positions = torch.arange(max(sequence.length - reach, 0), sequence.length)
            for layer, ring in rings.items():
                yield f"{kind}.{layer}", ring, _flat(ring, torch.full_like(positions, sequence.slot), positions)

    def _live_ring_rows(self, sequence: FedSequence) -> Iterator[tuple[str, Tensor, tuple[int, int]]]:
        """The first token of a pair that is still open (compressor rings exist at ratio 2 only)."""
        if sequence.length % 2:
            for layer, ring in self.caches.compressor.items():
                yield f"compressor.{layer}", ring, (sequence.slot, (sequence.length - 1) % ring.shape[1])

    def _rows(self, sequence: FedSequence, count: int) -> SequenceRows:
        start, lookback = sequence.length, self.model.lookback
        ids = sequence.tokens[start : start + count]
        assert len(ids) == count, "the sequence has no more tokens"
        compressed = [self._compressed(sequence, p) for p in range(start + count)]
        history = compressed[max(start - lookback, 0) : start][::-1]
        return SequenceRows(
            token_ids=ids, compressed_ids=compressed[start:], start=start, ngram_history=history,
            state_slot=sequence.slot, blocks=sequence.blocks, window_start=sequence.window_start,
            store_from=sequence.store_from, total_length=len(sequence.tokens), all_rows=sequence.all_rows,
        )  # fmt: skip

    def _compressed(self, sequence: FedSequence, position: int) -> int:
        table = self.model.compressed_map
        return -1 if position in sequence.images else table[sequence.tokens[position]] if table else 0

    def inputs(self, rows: list[SequenceRows], *, prefill: bool) -> StepInputs:
        """The tensors of one step."""
        return step_inputs(
            rows, prefill=prefill, lookback=self.model.lookback, device=self.model.device, truncation=self.truncation
        )

    @torch.inference_mode()
    def _run(self, inputs: StepInputs) -> Tensor:
        """What ``Executor.run`` does, over inputs that it would not make."""
        graph = self.model.graph
        step = graph.begin(inputs, self.caches)
        hidden = graph.forward(step)
        graph.write_draft_context(step)
        return hidden


def _flat(cache: Cache, blocks: Tensor, rows: Tensor) -> Tensor:
    return (blocks * cache.rows_per_block + rows % cache.rows_per_block).to(torch.int32)


def _padded(inputs: StepInputs, count: int) -> StepInputs:
    """``count`` rows without a sequence, and as many sequences that hold only the dummy slot and block."""
    fill = {"compressed_ids": -1, "row_sequence": -1, "ngram_history": -1}
    values = {name: getattr(inputs, name) for name in StepInputs.__dataclass_fields__}
    tensors: Mapping[str, Tensor] = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    extended = {
        name: torch.cat((value, value.new_full((count, *value.shape[1:]), fill.get(name, 0))))
        for name, value in tensors.items()
    }
    return replace(inputs, **extended)
