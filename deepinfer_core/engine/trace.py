"""Record named intermediate tensors of a run, in the names and shapes of the golden files.

Every position is kept. Names: ``logits``, ``argmax``, ``final_hidden``, ``streams.i``, ``pre_mix.i``, ``attn_out.i``,
``ffn_out.i``, ``router_ids.i``, ``router_weights.i``, ``topk.i``, ``index_scores.i``, ``compressed_kv.i``,
``index_keys.i``, ``engram_ids``, ``features``, ``draft_*`` and ``greedy`` (docs/trace.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from deepinfer_core.errors import RequestError
from deepinfer_core.ops.kv_cache.store import load
from deepinfer_core.runtime.batch import SequenceRows, int32_row, step_inputs
from deepinfer_core.runtime.executor import Executor

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.runtime.executor import Drafts
    from deepinfer_core.runtime.model import BoundModel

_GREEDY_TOKENS = 12
_LONG_PROMPT = 300
_MAIN_SLOT, _DRAFT_SLOT = 1, 2


class Trace:
    """One traced prompt: prefill (in chunks), drafts at three anchors, a short greedy continuation."""

    def __init__(self, model: BoundModel, token_ids: Sequence[int], *, chunk: int = 0) -> None:
        """Prepare; nothing runs yet.

        Args:
            model: The bound model.
            token_ids: The prompt.
            chunk: Tokens per prefill step; 0 for one step.

        Raises:
            RequestError: The prompt is empty, has ids outside the vocabulary, or is too long; or ``chunk`` is negative.
        """
        if chunk < 0:
            raise RequestError(f"trace: chunk is {chunk}; give the tokens per prefill step, or 0 for one step")
        self._model = model
        self._ids = _checked(model, token_ids)
        self._chunk = chunk or len(self._ids)
        self._steps = _GREEDY_TOKENS if len(self._ids) <= _LONG_PROMPT else _GREEDY_TOKENS // 2
        self._steps = min(self._steps, model.max_positions - len(self._ids))
        blocks = model.layout.blocks_for(len(self._ids) + self._steps)
        self._blocks = range(1, blocks + 1)
        self._executor = Executor(model, model.allocate(blocks, 2))
        self._compressed = (
            [model.compressed_map[i] for i in self._ids] if model.compressed_map else [0] * len(self._ids)
        )

    def run(self) -> dict[str, Tensor]:
        """Every tensor, on the host."""
        pieces: dict[str, list[Tensor]] = defaultdict(list)
        hidden: list[Tensor] = []
        for start in range(0, len(self._ids), self._chunk):
            rows = self._rows(self._ids[start : start + self._chunk], start)
            out, step = self._executor.run([rows], prefill=True, record=lambda name, value: pieces[name].append(value))
            hidden.append(out)
            if step.features:
                pieces["features"].append(torch.cat(self._executor.features(step), -1))
        logits = self._executor.logits(torch.cat(hidden))
        traced = {name: self._joined(name, values) for name, values in pieces.items()}
        traced = {name: value for name, value in traced.items() if value.numel() or not name.startswith("index_scores")}
        traced |= {"input/ids": int32_row(self._ids), "logits": logits}
        traced["argmax"] = self._model.sampler.greedy(logits.float())
        traced |= self._cached()
        traced |= self._engram()
        if self._model.graph.draft is not None:
            traced |= self._drafts(traced["features"], logits)
        traced["greedy"] = self._greedy(logits)
        return {name: _to_host(value) for name, value in traced.items()}

    def _rows(self, ids: Sequence[int], start: int) -> SequenceRows:
        lookback = self._model.lookback
        before = self._compressed[max(start - lookback, 0) : start]
        compressed = self._compressed[start : start + len(ids)]
        return SequenceRows(
            token_ids=ids,
            compressed_ids=compressed,
            start=start,
            ngram_history=before[::-1],
            state_slot=_MAIN_SLOT,
            blocks=self._blocks,
        )

    def _joined(self, name: str, values: list[Tensor]) -> Tensor:
        """Chunks below each other; selections and scores get the width of the whole prompt."""
        kind, _, layer = name.partition(".")
        if kind not in ("topk", "index_scores"):
            return _squeeze_router(kind, torch.cat(values))
        entries = len(self._ids) // self._model.architecture.compress_ratios[int(layer)]
        if kind == "topk":
            return torch.cat(values)[:, : min(entries, self._model.architecture.indexer.top_k)]
        padded = [
            torch.nn.functional.pad(v[:, :entries], (0, max(entries - v.shape[1], 0)), value=-torch.inf) for v in values
        ]
        return torch.cat(padded)

    def _cached(self) -> dict[str, Tensor]:
        """Compressed entries and index keys as the caches hold them."""
        found = {}
        for kind, caches in (
            ("compressed_kv", self._executor.caches.main),
            ("index_keys", self._executor.caches.index),
        ):
            for layer, cache in caches.items():
                entries = len(self._ids) // self._model.architecture.compress_ratios[layer]
                first = cache.rows_per_block
                slots = torch.arange(first, first + entries, dtype=torch.int32, device=cache.storage.device)
                found[f"{kind}.{layer}"] = load.reference(slots, cache, out="f32")
        return found

    def _engram(self) -> dict[str, Tensor]:
        """Table rows ``[L, layers, columns]``."""
        rows = step_inputs(
            [self._rows(self._ids, 0)], prefill=True, lookback=self._model.lookback, device=self._model.device
        )
        by_layer = self._model.graph.engram_rows(rows)
        return {"engram_ids": torch.stack(list(by_layer.values()), 1)} if by_layer else {}

    def _drafts(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Drafts at the end of the prompt, in its middle and before its last token."""
        length = len(self._ids)
        anchors = [(length, int(logits[-1].argmax()))]
        anchors += [(p, self._ids[p]) for p in sorted({length // 2, length - 1}) if 0 < p < length]
        drafts = [self._draft_at(features, anchor) for anchor in anchors]
        return {
            "draft_positions": int32_row([p for p, _ in anchors]),
            "draft_anchor_tokens": int32_row([t for _, t in anchors]),
            "draft_tokens": torch.cat([d.tokens for d in drafts]),
            "draft_logits": torch.cat([d.logits for d in drafts]),
            "draft_hidden": torch.cat([d.hidden for d in drafts]),
            "draft_confidence_logits": torch.cat([d.confidence_logits for d in drafts]),
            "draft_confidence": torch.cat([d.confidence for d in drafts]),
        }

    @torch.inference_mode()
    def _draft_at(self, features: Tensor, anchor: tuple[int, int]) -> Drafts:
        """Fill a scratch slot with the context keys before the anchor, then draft."""
        attention, module = self._model.architecture.attention, self._model.graph.draft
        end = anchor[0]
        begin = max(end - attention.sliding_window, 0)
        positions = torch.arange(begin, end, dtype=torch.int32, device=features.device)
        stores = _DRAFT_SLOT * attention.window_ring_rows + positions % attention.window_ring_rows
        if module is None:
            raise RequestError("trace: this model has no draft module")
        module.write_context(
            (features[begin:end],), positions, stores.to(torch.int32), self._executor.caches.draft_window
        )
        return self._executor.draft(module, [anchor], [_DRAFT_SLOT])

    def _greedy(self, logits: Tensor) -> Tensor:
        """A greedy continuation through decode steps, not stopped at the end token."""
        tokens: list[int] = []
        last = logits[-1:]
        compressed_map = self._model.compressed_map
        for number in range(self._steps):
            tokens.append(int(self._model.sampler.greedy(last.float())[0]))
            if number == self._steps - 1:
                break
            self._compressed.append(compressed_map[tokens[-1]] if compressed_map else 0)
            hidden, _ = self._executor.run([self._rows(tokens[-1:], len(self._ids) + number)], prefill=False)
            last = self._executor.logits(hidden)
        return int32_row(tokens)


def _checked(model: BoundModel, token_ids: Sequence[int]) -> list[int]:
    vocabulary = model.architecture.vocab_size
    wrong = [i for i in token_ids if not 0 <= i < vocabulary]
    if not token_ids or wrong:
        what = f"ids {wrong[:5]} are outside 0 .. {vocabulary - 1}" if wrong else "the list of token ids is empty"
        raise RequestError(f"trace: {what}; give at least one id of this model's vocabulary")
    if len(token_ids) >= model.max_positions:
        limit = f"this model was opened for {model.max_positions} positions"
        raise RequestError(f"trace: {len(token_ids)} tokens, but {limit}; shorten the prompt")
    return list(token_ids)


def _squeeze_router(kind: str, value: Tensor) -> Tensor:
    """Router outputs of a single position have no row axis in the golden files."""
    return value[0] if kind in ("router_ids", "router_weights") and len(value) == 1 else value


def _to_host(value: Tensor) -> Tensor:
    """Float64 stays as it is, so that exact arithmetic can be compared exactly; all else is float32 or an integer."""
    value = value.cpu()
    return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).contiguous()
