"""From an opened model and settings to the parts of an engine, sized to the memory that is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.engine.cache_identity import cache_identity
from deepinfer_core.engine.cache_size import num_cache_blocks
from deepinfer_core.engine.draft_log import DraftLog
from deepinfer_core.engine.grammars import Grammars
from deepinfer_core.engine.intake import Intake
from deepinfer_core.engine.prefix_storage import open_storage
from deepinfer_core.engine.reporter import Reporter
from deepinfer_core.engine.step_measurement import measure_step_times
from deepinfer_core.engine.step_runner import StepRunner
from deepinfer_core.prefix_cache.keys import root_key
from deepinfer_core.runtime.cache_transfer import CacheTransfer
from deepinfer_core.runtime.drafter import Drafter
from deepinfer_core.runtime.executor import Executor
from deepinfer_core.scheduler.draft_budget import AdaptiveLengths, FixedLengths
from deepinfer_core.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.opening import OpenedModel
    from deepinfer_core.engine.prefix_storage import PrefixStorage
    from deepinfer_core.engine.step_runner import StepExecutor
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.scheduler.drafts import DraftPlanner


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What an engine is made of.

    Attributes:
        scheduler: Decides what runs.
        runner: Launches it.
        overlaps: A step is launched before the tokens of the one before it are known.
        storage: The prefix cache outside the device; None without one.
        intake: Makes requests.
        grammars: Keeps those whose grammar is compiled.
        reporter: Tells about all of it.
        num_blocks: Cache blocks that sequences can have.
        draft_log: Counts drafts; None without speculative decoding.
    """

    scheduler: Scheduler
    runner: StepRunner
    overlaps: bool
    storage: PrefixStorage | None
    intake: Intake
    grammars: Grammars
    reporter: Reporter
    num_blocks: int
    draft_log: DraftLog | None


def assemble(
    opened: OpenedModel,
    config: EngineConfig,
    clock: Callable[[], float],
    wrap_executor: Callable[[StepExecutor], StepExecutor] | None,
) -> EngineParts:
    """Allocate caches and make the parts; the arguments and errors are those of ``Engine``."""
    model, architecture = opened.model, opened.model.architecture
    config.truncation().check(architecture.attention)
    max_model_len = min(config.max_model_len or model.max_positions, model.max_positions)
    prefixes = config.prefixes(architecture.attention.sliding_window)
    num_slots = config.max_num_seqs + prefixes.num_snapshots
    num_blocks = num_cache_blocks(model, config, max_model_len, num_slots)
    caches = model.allocate(num_blocks, num_slots)
    drafter = Drafter(model, caches) if model.drafting is not None else None
    executor: StepExecutor = Executor(model, caches, drafting=drafter is not None, truncation=config.truncation())
    scheduler = Scheduler(
        config.scheduler(max_model_len),
        num_blocks=num_blocks,
        num_state_slots=config.max_num_seqs,
        prefix_cache=prefixes,
        drafts=_draft_planner(model, executor, drafter, config) if drafter is not None else None,
    )
    executor = wrap_executor(executor) if wrap_executor is not None else executor
    transfer = CacheTransfer(caches, model.device)
    overlaps = config.overlap == "on" or (config.overlap == "auto" and model.is_asynchronous)
    identity = cache_identity(opened, config) if prefixes.is_on else None
    storage = open_storage(config, identity, transfer) if identity is not None else None
    if storage is not None:
        scheduler.prefix_cache.attach(storage)
    root = root_key(identity) if identity is not None else b""
    sizes = {"vocab_size": architecture.vocab_size, "eos_token_id": architecture.eos_token_id}
    reporter = Reporter(config, scheduler, num_blocks=num_blocks, clock=clock)
    return EngineParts(
        scheduler=scheduler,
        runner=StepRunner(model, executor, transfer, feeds_back=overlaps, drafter=drafter),
        overlaps=overlaps,
        storage=storage,
        intake=Intake(architecture, opened.tokenizer, scheduler.check, config.seed, cache_root=root),
        grammars=Grammars(opened.tokenizer, **sizes, clock=clock),
        reporter=reporter,
        num_blocks=num_blocks,
        draft_log=DraftLog() if drafter is not None else None,
    )


def _draft_planner(model: BoundModel, executor: StepExecutor, drafter: Drafter, config: EngineConfig) -> DraftPlanner:
    """Who chooses draft lengths; an adaptive one gets to know the machine first."""
    settings = drafter.settings
    if not settings.is_adaptive:
        return FixedLengths(settings.num_drafts)
    max_rows = min(config.max_num_seqs * (1 + settings.num_drafts), config.max_num_batched_tokens)
    times = measure_step_times(model, executor, drafter, max_num_seqs=config.max_num_seqs, max_rows=max_rows)
    return AdaptiveLengths(times)
