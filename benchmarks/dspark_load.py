"""Decode throughput under one way of drafting: real requests of the tiny model, or the slice with simulated drafts."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from dspark_traces import Block, by_task, heldout

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.backend.device import Device
from deepinfer_core.config.speculation import DraftSettings
from deepinfer_core.engine.draft_log import DraftLog
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.launched_step import EntryTokens, LaunchedStep
from deepinfer_core.engine.opening import OpenedModel
from deepinfer_core.scheduler.drafts import Proposal

MODES = ("none", "fixed 1", "fixed 2", "fixed 3", "fixed 4", "fixed 5", "adaptive")
_LARGEST_LOGIT = 60.0
_STEPS_OF_A_TURN = 3
_STEPS_OF_A_TURN_ON_A_DEVICE = 15
"""Every turn ends with a device that is done, which a way that overlaps steps pays for."""
_BLOCKS_OF_A_TASK = 8


@dataclass
class Run:
    """What one way of drafting did.

    Attributes:
        mode: Which.
        sequences: At once.
        decode_s: Time of the decode steps, planning included.
        num_tokens: Tokens that they yielded.
        num_steps: How many they were.
        num_verified: Drafts that they verified.
        num_accepted: Drafts that became output.
        num_rows: Their rows.
        num_with_drafts: Steps in which some draft was verified.
        recorded_s: Seconds of decode steps in which a graph was recorded. They count nowhere else: it happens once for
            each size.
        timeline: Rows of each step.
        tokens: What each yielded.
        step_s: Seconds that each took.
        plan_s: Seconds in which each was planned.
        by_task: Blocks, verified and accepted drafts of each task.
    """

    mode: str
    sequences: int
    decode_s: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    num_rows: int = 0
    num_with_drafts: int = 0
    recorded_s: list[float] = field(default_factory=list)
    timeline: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    plan_s: list[float] = field(default_factory=list)
    by_task: dict[str, list[int]] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences."""
        return self.num_tokens / self.decode_s if self.decode_s else 0.0


def settings_of(mode: str, num_drafts: int) -> dict[str, Any] | None:
    """The setting ``speculative_config`` of a mode."""
    if mode == "none":
        return None
    if mode == "adaptive":
        return {"verification": "adaptive", "num_draft_tokens": num_drafts}
    return {"verification": "fixed", "num_draft_tokens": int(mode.split()[1])}


def opened_for(opened: OpenedModel, mode: str, num_drafts: int) -> OpenedModel:
    """The same model with other settings for drafts; weights are shared."""
    ops = opened.model.drafting
    if ops is None:
        raise SystemExit("open the model with speculative settings")
    if mode == "none":
        return replace(opened, model=replace(opened.model, drafting=None))
    count = num_drafts if mode == "adaptive" else int(mode.split()[1])
    chosen = DraftSettings(
        num_drafts=count,
        is_coupled=ops.settings.is_coupled,
        is_adaptive=mode == "adaptive",
        temperatures=ops.settings.temperatures[:count],
    )
    return replace(opened, model=replace(opened.model, drafting=ops.resized(chosen)))


def watch(engine: Engine, run: Run, tasks: Callable[[str], str]) -> None:
    """Make an engine's decode steps count into a run."""
    advance, step, log = engine._advance, engine.step, engine.draft_log  # noqa: SLF001
    state: dict[str, Any] = {"tokens": 0, "touched": ()}

    def advanced(runner: Any, now: float) -> Any:
        state["touched"] = advance(runner, now)
        return state["touched"]

    def counted() -> Any:
        recordings, began = _Recordings.count, time.perf_counter()
        records = step()
        seconds = time.perf_counter() - began
        entries = [entry for entry in state["touched"] if not entry.is_prefill]
        num_tokens = engine._counters.num_generated_tokens - state["tokens"]  # noqa: SLF001
        state["tokens"] += num_tokens
        if not entries or len(entries) < len(state["touched"]):
            return records
        if _Recordings.count > recordings:
            run.recorded_s.append(seconds)
            return records
        run.decode_s += seconds
        run.num_steps += 1
        run.num_with_drafts += any(entry.has_drafts for entry in entries)
        run.timeline.append(sum(entry.num_tokens for entry in entries))
        run.num_rows += run.timeline[-1]
        run.step_s.append(seconds)
        run.tokens.append(num_tokens)
        run.num_tokens += num_tokens
        return records

    engine._advance = advanced  # type: ignore[method-assign]  # noqa: SLF001
    engine.step = counted  # type: ignore[method-assign]
    _watch_plans(engine, run)
    if log is not None:
        _watch_drafts(log, run, tasks)


class _Recordings:
    """Counts the graphs that a device records.

    Attributes:
        count: Until now.
    """

    count = 0
    _watched: ClassVar[set[type]] = set()

    @classmethod
    def watch(cls, device: Device) -> None:
        """Count those of one, too."""
        kind = type(device)
        if kind in cls._watched:
            return
        cls._watched.add(kind)
        capture = kind.capture

        def counted(self: Any, work: Callable[[], None]) -> Any:
            cls.count += 1
            return capture(self, work)

        kind.capture = counted  # type: ignore[method-assign]


def _watch_plans(engine: Engine, run: Run) -> None:
    plan = engine.scheduler.plan

    def planned(now: float) -> Any:
        began = time.perf_counter()
        found = plan(now)
        run.plan_s.append(time.perf_counter() - began)
        return found

    engine.scheduler.plan = planned  # type: ignore[method-assign]


def _watch_drafts(log: DraftLog, run: Run, tasks: Callable[[str], str]) -> None:
    note = log.note

    def noted(request: Any, entry: Any, found: EntryTokens, num_kept: int) -> None:
        if found.num_verified:
            row = run.by_task.setdefault(tasks(request.request_id), [0, 0, 0])
            row[0] += 1
            row[1] += found.num_verified
            row[2] += min(found.num_accepted, num_kept)
            run.num_verified += found.num_verified
            run.num_accepted += min(found.num_accepted, num_kept)
        note(request, entry, found, num_kept)

    log.note = noted  # type: ignore[method-assign]


@dataclass
class Lane:
    """An engine that runs beside others.

    Attributes:
        engine: Its steps count into ``run``.
        run: What it did.
        scope: Entered around its steps.
    """

    engine: Engine
    run: Run
    scope: Callable[[], AbstractContextManager[None]] = nullcontext


def take_turns(lanes: Sequence[Lane], device: Device, num_steps: int, is_over: Callable[[Lane], bool]) -> None:
    """A few steps of one after a few of another in random order: what disturbs the machine for a while disturbs all."""
    order, going = random.Random(0), list(lanes)
    while going:
        order.shuffle(going)
        for lane in going:
            lane.engine._pace.pause()  # noqa: SLF001 - what the others took is no time of its own
            with lane.scope():
                _advance(lane.engine, lane.run, lane.run.num_steps + num_steps)
            began = time.perf_counter()
            device.synchronize()  # a step in flight is its own
            lane.run.decode_s += time.perf_counter() - began
        going = [lane for lane in going if not is_over(lane)]


def run_heldout(
    opened: OpenedModel, modes: Sequence[str], sequences: int, *, num_requests: int, temperature: float
) -> dict[str, Run]:
    """The held-out prompts, as many at once as asked, each answered to its own end. All ways take turns."""
    sizes = {"num_requests": num_requests, "temperature": temperature}
    lanes = [_start_heldout(opened, Run(mode, sequences), **sizes) for mode in modes]  # type: ignore[arg-type]
    take_turns(lanes, opened.model.device, _STEPS_OF_A_TURN, lambda lane: not lane.engine.has_unfinished)
    return _closed(lanes)


def _closed(lanes: Sequence[Lane]) -> dict[str, Run]:
    for lane in lanes:
        lane.engine.close()
    return {lane.run.mode: lane.run for lane in lanes}


def _start_heldout(
    opened: OpenedModel, run: Run, *, num_requests: int, temperature: float, max_tokens: int = 128
) -> Lane:
    """An engine with the prompts queued."""
    mode, sequences = run.mode, run.sequences
    items = [item for item in heldout() if len(item["prompt"]) < 600]
    random.Random(0).shuffle(items)
    items = (items * (num_requests // len(items) + 1))[:num_requests]
    config = EngineConfig(
        model="tiny",
        max_num_seqs=sequences,
        max_model_len=512,
        max_prefill_steps_in_a_row=10**6,
        speculative_config=settings_of(mode, 5),
    )
    engine = Engine(opened_for(opened, mode, 5), config)
    watch(engine, run, lambda request_id: items[int(request_id)]["task"])
    for number, item in enumerate(items):
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=number)
        engine.add(str(number), opened.tokenizer.encode(item["prompt"]), params)  # type: ignore[union-attr]
    return Lane(engine, run)


class Simulated:
    """Replaces what became of drafts by recorded blocks: for a while of one task, at random in their order.

    Sequences begin with different tasks, and each goes on to the next every ``_BLOCKS_OF_A_TASK`` blocks, so that few
    sequences see the whole mix, too.
    """

    def __init__(self, blocks: Sequence[Block], seed: int = 0) -> None:
        self._by_task = by_task(blocks)
        self._tasks = sorted(self._by_task)
        self._random = random.Random(seed)
        self._current: dict[tuple[str, int], Block] = {}
        self._num_blocks: Counter[str] = Counter()

    def task(self, request_id: str) -> str:
        """Of a request, whose id is a number, now."""
        place = int(request_id) + self._num_blocks[request_id] // _BLOCKS_OF_A_TASK
        return self._tasks[place % len(self._tasks)]

    def tokens(self, sampled: Sequence[Any], found: Sequence[EntryTokens]) -> list[EntryTokens]:
        """The tokens of a step, with recorded acceptance and confidence."""
        return [self._one(entry, tokens) for entry, tokens in zip(sampled, found, strict=True)]

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Simulate every step that ends in this scope."""
        real = LaunchedStep.tokens
        LaunchedStep.tokens = lambda step: self.tokens(step.sampled, real(step))  # type: ignore[method-assign]
        try:
            yield
        finally:
            LaunchedStep.tokens = real  # type: ignore[method-assign]

    def _one(self, entry: Any, found: EntryTokens) -> EntryTokens:
        key = (entry.sequence.request_id, entry.sequence.index)
        block = self._current.get(key)
        num_accepted = min(found.num_verified, block.num_accepted if block is not None else 0)
        self._num_blocks[key[0]] += 1
        following = self._random.choice(self._by_task[self.task(key[0])])
        self._current[key] = following
        drafts = found.proposal.token_ids
        confidence = tuple(_sigmoid(logit) for logit in following.logits[: len(drafts)])
        token = replace(found.sampled[0], token_id=max(found.sampled[0].token_id, 3), error="")
        return EntryTokens(
            sampled=[token] * (num_accepted + 1),
            num_verified=found.num_verified,
            num_accepted=num_accepted,
            proposal=Proposal(drafts, confidence, following.logits[: len(drafts)]),
        )


def run_simulated(
    opened: OpenedModel, modes: Sequence[str], sequences: int, blocks: Sequence[Block], *, context: int, num_steps: int
) -> dict[str, Run]:
    """Sequences of random tokens that go on for so many steps; which drafts stand is simulated, the work is real.

    All ways take turns. Everything is done twice, and only the second time counts: then what steps need is compiled and
    recorded.
    """
    device = opened.model.device
    _Recordings.watch(device)
    lanes: list[Lane] = []
    for mode in modes:
        simulated, run = Simulated(blocks), Run(mode, sequences)
        engine = Engine(opened_for(opened, mode, 5), _simulated_config(mode, sequences, context, num_steps))
        watch(engine, run, simulated.task)
        lanes.append(Lane(engine, run, simulated.acting))
    vocabulary = opened.model.architecture.vocab_size
    for _ in range(2):
        for lane in lanes:
            lane.run.__init__(lane.run.mode, sequences)  # type: ignore[misc]  # forgets the first time
            for number in range(sequences):
                prompt = [5 + (place * 7 + number * 131) % (vocabulary - 5) for place in range(context)]
                params = SamplingParams(temperature=0.0, max_tokens=10**6, ignore_eos=True)
                lane.engine.add(str(number), prompt, params)
        take_turns(lanes, device, _STEPS_OF_A_TURN_ON_A_DEVICE, lambda lane: lane.run.num_steps >= num_steps)
        for lane in lanes:
            lane.engine.discard(map(str, range(sequences)))
            lane.engine.step()
    return _closed(lanes)


def _simulated_config(mode: str, sequences: int, context: int, num_steps: int) -> EngineConfig:
    return EngineConfig(
        model="slice",
        max_num_seqs=sequences,
        max_model_len=context + 6 * (num_steps + _STEPS_OF_A_TURN_ON_A_DEVICE + 8),  # nobody ends
        max_num_batched_tokens=8192,
        max_prefill_steps_in_a_row=10**6,
        kv_cache_memory_gib=4.0,
        speculative_config=settings_of(mode, 5),
    )


def _advance(engine: Engine, run: Run, num_steps: int) -> None:
    """Step until so many decode steps were counted."""
    while run.num_steps < num_steps and engine.has_unfinished:
        engine.step()


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-_LARGEST_LOGIT, min(_LARGEST_LOGIT, logit))))
