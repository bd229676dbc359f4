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
from deepinfer_core.engine.step_runner import StepRunner
from deepinfer_core.prefix_cache.keys import root_key
from deepinfer_core.runtime.cache_transfer import CacheTransfer
from deepinfer_core.runtime.drafter import Drafter
from deepinfer_core.runtime.executor import Executor
from deepinfer_core.scheduler.drafts import VerifyAll
from deepinfer_core.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.opening import OpenedModel
    from deepinfer_core.engine.prefix_storage import PrefixStorage
    from deepinfer_core.engine.step_runner import StepExecutor


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
    scheduler = Scheduler(
        config.scheduler(max_model_len),
        num_blocks=num_blocks,
        num_state_slots=config.max_num_seqs,
        prefix_cache=prefixes,
        drafts=VerifyAll() if model.drafting is not None else None,
    )
    caches = model.allocate(num_blocks, num_slots)
    drafting = model.drafting is not None
    executor: StepExecutor = Executor(model, caches, drafting=drafting, truncation=config.truncation())
    executor = wrap_executor(executor) if wrap_executor is not None else executor
    transfer = CacheTransfer(caches, model.device)
    overlaps = not drafting and (config.overlap == "on" or (config.overlap == "auto" and model.is_asynchronous))
    identity = cache_identity(opened, config) if prefixes.is_on else None
    storage = open_storage(config, identity, transfer) if identity is not None else None
    if storage is not None:
        scheduler.prefix_cache.attach(storage)
    root = root_key(identity) if identity is not None else b""
    sizes = {"vocab_size": architecture.vocab_size, "eos_token_id": architecture.eos_token_id}
    reporter = Reporter(config, scheduler, num_blocks=num_blocks, clock=clock)
    return EngineParts(
        scheduler=scheduler,
        runner=StepRunner(
            model, executor, transfer, feeds_back=overlaps, drafter=Drafter(model, caches) if drafting else None
        ),
        overlaps=overlaps,
        storage=storage,
        intake=Intake(architecture, opened.tokenizer, scheduler.check, config.seed, cache_root=root),
        grammars=Grammars(opened.tokenizer, **sizes, clock=clock),
        reporter=reporter,
        num_blocks=num_blocks,
        draft_log=DraftLog() if drafting else None,
    )
