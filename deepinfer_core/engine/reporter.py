"""What an engine tells about itself: from its own objects to the records of ``observability``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.engine.draft_watchdog import DraftWatchdog
from deepinfer_core.observability.collect import StepCollector
from deepinfer_core.observability.opening import metrics_page, open_hub
from deepinfer_core.observability.records import DEVICE_TIER, EngineInfo, RequestStats, StatsEvent
from deepinfer_core.outputs import DraftMetrics

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.draft_log import DraftLog
    from deepinfer_core.engine.launched_step import LaunchedStep
    from deepinfer_core.engine.request import Request
    from deepinfer_core.observability.records import EventName, WaitReason
    from deepinfer_core.scheduler.scheduler import Scheduler
    from deepinfer_core.scheduler.step_plan import SequencePlan

OUTER_TIERS = "outer"
"""All tiers of the prefix cache outside the device."""


class Reporter:
    """Makes records and hands them to the sinks that the settings ask for; does next to nothing without any."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, *, num_blocks: int, clock: Callable[[], float]
    ) -> None:
        """Open the sinks.

        Raises:
            ConfigError: A sink cannot be opened; all problems are listed.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._sizes = num_blocks, config.max_num_seqs
        self._collector = StepCollector()
        self._counted = (0, 0, 0)
        self._drafts, self._watchdog = DraftMetrics(), DraftWatchdog()
        info = EngineInfo(
            model_name=config.model,
            block_tokens=BLOCK_TOKENS,
            num_blocks=num_blocks,
            num_state_slots=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            prefix_caching=config.prefix_cache != "off",
        )
        self._hub = open_hub(
            info,
            log_stats_interval_s=config.log_stats_interval_s,
            metrics=config.metrics,
            metrics_vllm_names=config.metrics_vllm_names,
            stats_file=config.stats_file,
            stats_sinks=config.stats_sinks,
            clock=clock,
        )

    @property
    def page(self) -> bytes | None:
        """The metrics in Prometheus' text format; None when the settings ask for none."""
        return metrics_page(self._hub)

    def tokens(self, request: Request, index: int, now: float, num_tokens: int) -> None:
        """Take note of tokens of a completion."""
        arrival = request.arrival_time if request.first_token_time is None else None
        self._collector.note_tokens(request.token_times[index], now, num_tokens, arrival_s=arrival)

    def step(self, launched: LaunchedStep, *, num_waiting_grammar: int, draft_log: DraftLog | None = None) -> None:
        """Tell about a step whose tokens have been taken."""
        drafts = self._new_drafts(draft_log) if draft_log is not None else None
        if not self._hub.is_active:
            return
        plan, times = launched.plan, launched.times
        verify_s, draft_s = launched.device_seconds()
        self._note_prefix()
        self._hub.on_step(
            self._collector.step(
                time_s=self._clock(),
                kind=plan.kind.value,
                num_sequences=len(plan.entries),
                num_rows=plan.num_tokens,
                num_padded_rows=launched.num_padded_rows,
                num_wasted_rows=sum(entry.num_tokens for entry in plan.entries if _is_wasted(entry, launched)),
                num_prompt_tokens=sum(entry.num_tokens for entry in plan.prefills),
                num_preemptions=len(plan.preempted),
                plan_s=times.plan_s,
                launch_s=times.launch_s,
                wait_s=times.wait_s,
                apply_s=times.apply_s,
                num_draft_rows=sum(len(entry.draft_token_ids) for entry in plan.decodes),
                drafts=drafts,
                verify_s=verify_s,
                draft_s=draft_s,
                **self._state(num_waiting_grammar),
            )
        )

    def idle(self, *, num_waiting_grammar: int) -> None:
        """Tell that nothing ran, though what waits or runs has changed."""
        if self._hub.is_active:
            self._hub.on_step(
                self._collector.step(time_s=self._clock(), kind="idle", **self._state(num_waiting_grammar))
            )

    def ended(self, request: Request) -> None:
        """Tell about a request that has ended."""
        if not self._hub.is_active:
            return
        completions = zip(request.completions, request.token_times, strict=True)
        self._hub.on_request(
            RequestStats(
                request_id=request.request_id,
                num_prompt_tokens=len(request.prompt_token_ids),
                times=request.metrics(),
                completions=tuple(times.stats(completion.finish_reason or "") for completion, times in completions),
                max_tokens=request.params.max_tokens,
                grammar_compile_s=request.grammar_compile_s,
            )
        )

    def event(self, name: EventName, **details: str | float) -> None:
        """Tell about something rare."""
        if self._hub.is_active:
            self._hub.on_event(StatsEvent(name=name, time_s=self._clock(), details=details))

    def close(self) -> None:
        """Close the sinks."""
        self._hub.close()

    def _state(self, num_waiting_grammar: int) -> dict[str, object]:
        """Who runs and waits, and what is used."""
        state, (num_blocks, num_slots) = self._scheduler.statistics(), self._sizes
        waiting: dict[WaitReason, int] = {"capacity": state.num_waiting, "grammar": num_waiting_grammar}
        return {
            "num_running": state.num_running,
            "num_waiting": waiting,
            "num_blocks": num_blocks,
            "num_used_blocks": num_blocks - state.num_free_blocks,
            "num_state_slots": num_slots,
            "num_used_state_slots": num_slots - state.num_free_state_slots,
        }

    def _new_drafts(self, draft_log: DraftLog) -> DraftMetrics:
        """What became of drafts since the last step; a sign that they are useless is told."""
        before, self._drafts = self._drafts, draft_log.total.metrics()
        drafts = self._drafts - before
        num_refused = self._watchdog.note(drafts)
        if num_refused:
            self.event("no_draft_accepted", num_blocks=num_refused)
        return drafts

    def _note_prefix(self) -> None:
        """What was looked up in the prefix cache since the last step."""
        counters = self._scheduler.prefix_cache.counters
        before, self._counted = (
            self._counted,
            (counters.num_query_tokens, counters.num_hit_tokens, counters.num_outer_tokens),
        )
        queries, hits, outer = (now - old for now, old in zip(self._counted, before, strict=True))
        if queries:
            inner = max(hits - outer, 0)
            self._collector.note_prefix(
                {DEVICE_TIER: queries, OUTER_TIERS: queries - inner}, {DEVICE_TIER: inner, OUTER_TIERS: hits - inner}
            )


def _is_wasted(entry: SequencePlan, launched: LaunchedStep) -> bool:
    """Whether a row was computed for a sequence that had ended: with overlap that is known too late."""
    return entry.samples and entry not in launched.sampled
