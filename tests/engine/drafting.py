"""Engines that make drafts, over one open model, and ways for a test to say what is drafted and what is verified."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from deepinfer_core import EngineConfig, RequestOutput, SamplingParams
from deepinfer_core.backend import registry
from deepinfer_core.backend.binding import Binder
from deepinfer_core.config.speculation import DraftSettings, SpeculativeConfig
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.launched_step import EntryTokens
from deepinfer_core.engine.opening import OpenedModel, open_model
from deepinfer_core.runtime.drafter import DraftedBlocks, Drafter
from deepinfer_core.runtime.drafting_ops import DraftingOps
from deepinfer_core.runtime.sampler import Sampler
from deepinfer_core.runtime.sampling_tensors import SamplingRow
from deepinfer_core.scheduler.drafts import DraftPlanner, StepTiming
from deepinfer_core.scheduler.sequence import Sequence as ScheduledSequence

BLOCK = 5
"""Drafts that the tiny model was trained for."""
BLOCK_BYTES = 35840
EOS = 1
HELDOUT = Path(__file__).parents[1] / "data/eval_heldout.jsonl"

Asked = Mapping[str, tuple[Sequence[int], SamplingParams]]
"""Prompt and parameters of each request, by id."""


@cache
def _bound(accelerator: str, *, batch_invariant: bool) -> OpenedModel:
    speculation = SpeculativeConfig(verification="fixed", acceptance="coupled")
    return open_model("tiny", accelerator=accelerator, batch_invariant=batch_invariant, speculation=speculation)


@cache
def model(accelerator: str, num_drafts: int = BLOCK, *, coupled: bool = True, invariant: bool = True) -> OpenedModel:
    """The tiny model with so many drafts; none: for plain decoding.

    All share their weights. The batch-invariant ones give a row in a block of drafts the bits of a single row.
    """
    opened = _bound(accelerator, batch_invariant=invariant)
    bound, binder = (
        opened.model,
        Binder(registry.load(registry.select(accelerator)), dtype=opened.model.numerics.activation),
    )
    if not coupled:  # tokens are drawn as the judge draws them
        sizes = {"vocab_size": bound.architecture.vocab_size, "eos_token_id": bound.architecture.eos_token_id}
        bound = replace(bound, sampler=Sampler(binder, **sizes))
    if not num_drafts:
        return replace(opened, model=replace(bound, drafting=None))
    temperatures = (1.0,) * num_drafts
    settings = DraftSettings(num_drafts=num_drafts, is_coupled=coupled, is_adaptive=False, temperatures=temperatures)
    ops = DraftingOps(binder, settings, bound.sampler)
    return replace(opened, model=replace(bound, drafting=ops))


def heldout_prompts(accelerator: str, longest: int = 400) -> list[list[int]]:
    """Prompts of the tiny model's own test set, in an order without meaning."""
    tokenizer = model(accelerator).tokenizer
    assert tokenizer is not None
    texts = [json.loads(line)["prompt"] for line in HELDOUT.read_text().splitlines()]
    found = [ids for ids in map(tokenizer.encode, texts) if len(ids) <= longest]
    random.Random(0).shuffle(found)
    return found


def start(
    opened: OpenedModel,
    *,
    planner: DraftPlanner | None = None,
    choose: Choose | None = None,
    **settings: object,
) -> Engine:
    """An engine over a model.

    Args:
        opened: The model.
        planner: Decides in place of the engine's own.
        choose: Says what is drafted in place of the draft module, which runs nevertheless.
        **settings: Of the configuration, and what ``Engine`` takes besides.
    """
    limits = {"max_num_seqs": 8, "max_model_len": 512, **settings}
    rest = {name: limits.pop(name) for name in ("clock", "nap", "wrap_executor") if name in limits}
    engine = Engine(opened, EngineConfig(model="tiny", **limits), **rest)
    if planner is not None:
        engine.scheduler._drafts = engine.scheduler._batcher._drafts = planner
    if choose is not None:
        sampler = runner_of(engine)._sampler
        assert sampler._drafter is not None
        sampler._drafter = Scripted(sampler._drafter, choose)
        may_wait(engine)
    return engine


def runner_of(engine: Engine):
    assert engine._runner is not None
    return engine._runner


def may_wait(engine: Engine) -> None:
    """Lets a test look at tensors inside a launch, where a device raises otherwise."""
    runner_of(engine)._without_waiting = nullcontext


def drafter_of(engine: Engine) -> Drafter:
    return runner_of(engine)._sampler._drafter


def finish(engine: Engine, asked: Asked, *, staggered: bool = False) -> dict[str, RequestOutput]:
    """The last record of each request; nothing is left behind.

    Args:
        engine: Runs them.
        asked: What is asked.
        staggered: Half of the requests come while the first ones run, one in each step.
    """
    coming = [(request_id, *request) for request_id, request in asked.items()]
    at_once = len(coming) // 2 if staggered else len(coming)
    found: dict[str, RequestOutput] = {}
    for request in coming[:at_once]:
        engine.add(*request)
    rest = coming[at_once:]
    while engine.has_unfinished or rest:
        if rest:
            engine.add(*rest.pop(0))
        for record in engine.step():
            if record.finished:
                assert record.request_id not in found, "a request ended twice"
                found[record.request_id] = record
    engine.scheduler.require_all_free()
    assert found.keys() == asked.keys()
    return found


def shown(records: Mapping[str, RequestOutput]) -> dict[str, list[tuple[object, ...]]]:
    """What a caller sees of the answers, log-probabilities to the last bit."""
    return {
        request_id: [(o.token_ids, o.text, o.finish_reason, o.stop_reason, o.logprobs, o.error) for o in record.outputs]
        + [(record.prompt_logprobs,)]
        for request_id, record in sorted(records.items())
    }


def same_as_plain(accelerator: str, engine: Engine, asked: Asked) -> dict[str, RequestOutput]:
    """Run the requests, and require what plain decoding shows."""
    found = finish(engine, asked)
    assert shown(found) == shown(finish(start(model(accelerator, 0)), asked))
    return found


@dataclass
class Lengths:
    """A planner that a test steers, and that remembers what it decided.

    Attributes:
        choose: Drafts of a sequence to verify, given how many may be; capped by what is allowed.
        is_proposing: Whether the draft module runs behind the next step.
        verified: Output tokens before each block of drafts, and its length, by request.
    """

    choose: Callable[[ScheduledSequence, int], int]
    is_proposing: Callable[[], bool] = lambda: True
    verified: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def lengths(
        self, sequences: Sequence[ScheduledSequence], limits: Sequence[int], num_spare_rows: int
    ) -> Sequence[int]:
        chosen: list[int] = []
        for sequence, limit in zip(sequences, limits, strict=True):
            chosen.append(max(0, min(self.choose(sequence, limit), limit, num_spare_rows)))
            num_spare_rows -= chosen[-1]
            self.verified.setdefault(sequence.request_id, []).append((sequence.num_output_tokens, chosen[-1]))
        return chosen

    def proposes(self, num_sequences: int) -> bool:
        del num_sequences
        return self.is_proposing()

    def reflect(self) -> None:
        """Nothing to learn."""

    def observe(self, timing: StepTiming) -> None:
        """Nothing to learn."""


def random_lengths(seed: int) -> Lengths:
    """Any number of drafts is verified, and now and then none are made."""
    source = random.Random(seed)
    return Lengths(lambda _, limit: source.randint(0, limit), lambda: source.random() < 0.8)


def in_spells(seed: int) -> Lengths:
    """The same in spells of a few steps, between which nothing is drafted or verified: then steps may overlap."""
    source = random.Random(seed)
    spell = [0, True]

    def proposes() -> bool:
        if spell[0] == 0:
            spell[:] = source.randint(1, 6), not spell[1]
        spell[0] -= 1
        return spell[1]

    return Lengths(lambda _, limit: source.randint(0, limit), proposes)


def block_at(places: Mapping[str, int]) -> Lengths:
    """A planner for right drafts: the last block of each request begins behind so many output tokens."""

    def length(sequence: ScheduledSequence, limit: int) -> int:
        missing = places[sequence.request_id] - sequence.num_output_tokens
        return limit if missing <= 0 else missing - 1

    return Lengths(length)


Choose = Callable[[SamplingRow, int, list[int]], Sequence[int]]
"""Drafts for a row, given the position of its anchor and what the draft module would draft."""


@dataclass
class Scripted:
    """A drafter whose drafts a test chooses. Its passes run as ever."""

    inner: Drafter
    choose: Choose

    @property
    def num_drafts(self) -> int:
        return self.inner.num_drafts

    def distributions(self, slots: Sequence[int], indices: Sequence[int]) -> Tensor | None:
        return self.inner.distributions(slots, indices)

    def propose(
        self, token_ids: Tensor, positions: Tensor, slots: Sequence[int], rows: Sequence[SamplingRow]
    ) -> DraftedBlocks:
        made = self.inner.propose(token_ids, positions, slots, rows)
        chosen = [
            self.choose(row, anchor, drafts)
            for row, anchor, drafts in zip(rows, positions.tolist(), made.token_ids.tolist(), strict=True)
        ]
        return replace(made, token_ids=torch.tensor(chosen, dtype=torch.int32, device=made.token_ids.device))


def right_until(text: Sequence[int], num_right: Callable[[SamplingRow], int] = lambda _: BLOCK) -> Choose:
    """Drafts that stand up to some number, for sequences that all go the same way.

    Args:
        text: Prompt and output; behind its end, any token.
        num_right: Right drafts of a block at most.
    """

    def choose(row: SamplingRow, anchor: int, made: list[int]) -> list[int]:
        true = [text[place] if place < len(text) else 7 for place in range(anchor + 1, anchor + 1 + len(made))]
        right = num_right(row)
        return [token if number < right else (token + 1) % 1000 for number, token in enumerate(true)]

    return choose


@dataclass
class Tally:
    """Counts drafts that an engine verifies and accepts.

    Attributes:
        verified: Drafts that were judged.
        accepted: Those that stand.
        blocks: Verified and accepted drafts of each block, by request.
    """

    verified: int = 0
    accepted: int = 0
    blocks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def watch(self, engine: Engine) -> Tally:
        take = engine._take

        def counted(entry, found: EntryTokens | None, now: float):
            if found is not None and found.num_verified:
                self.verified += found.num_verified
                self.accepted += found.num_accepted
                counts = found.num_verified, found.num_accepted
                self.blocks.setdefault(entry.sequence.request_id, []).append(counts)
            return take(entry, found, now)

        engine._take = counted
        return self
