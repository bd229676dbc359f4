"""The loop: plan a step, launch it, take the tokens of the one before it, sample, tell the requests.

With overlap a step is planned and launched before the tokens of the one before it are known, so that the device has
work while the host does its own (spec engine/03); not behind a step that verifies or makes drafts. What the requests
have generated is known again when the step is sampled: masks, penalties and stops never lag behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from deepinfer_core.engine.assembly import assemble
from deepinfer_core.engine.launched_step import StepTimes
from deepinfer_core.engine.request_checks import check_request_id
from deepinfer_core.engine.statistics import Counters, EngineStatistics
from deepinfer_core.engine.step_pace import StepPace
from deepinfer_core.errors import RequestError
from deepinfer_core.logging import get_logger
from deepinfer_core.scheduler.sequence import FinishReason
from deepinfer_core.scheduler.step_plan import Outcome

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.launched_step import EntryTokens, LaunchedStep
    from deepinfer_core.engine.opening import OpenedModel
    from deepinfer_core.engine.request import Request
    from deepinfer_core.engine.step_runner import StepExecutor, StepRunner
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.scheduler.sequence import Sequence as ScheduledSequence
    from deepinfer_core.scheduler.step_plan import SequencePlan, StepPlan

log = get_logger(__name__)

_NAP_S = 0.005
"""Between two looks whether memory that others hold has come back, or payloads from a disk; nothing announces that."""


class Engine:
    """Many requests over one model. Not safe for threads: one owner makes all calls.

    Every request that was added gets exactly one record with ``finished`` set, whatever happens to it, unless its
    owner discards it.

    Attributes:
        scheduler: Decides what runs; others may read it.
        draft_log: Counts drafts; None without speculative decoding.
    """

    def __init__(
        self,
        opened: OpenedModel,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
        wrap_executor: Callable[[StepExecutor], StepExecutor] | None = None,
    ) -> None:
        """Allocate caches for an opened model.

        Args:
            opened: The model and its tokenizer.
            config: Limits and memory.
            clock: Monotonic seconds, for metrics and deadlines.
            nap: Lets so many seconds pass, when nothing can run before somebody gives memory back or a disk answers.
            wrap_executor: Given what runs the model, returns what is called instead, for measurements and faults.

        Raises:
            CapacityError: The memory given does not hold one block.
            ConfigError: Prompts are truncated to fewer tokens than the model needs.
        """
        parts = assemble(opened, config, clock, wrap_executor)
        self.scheduler = parts.scheduler
        self._runner: StepRunner | None = parts.runner
        self.draft_log = parts.draft_log
        self._overlaps, self._storage, self._intake = parts.overlaps, parts.storage, parts.intake
        self._grammars, self._reporter = parts.grammars, parts.reporter
        self._sizes = parts.num_blocks, config.max_num_seqs
        self._clock, self._nap = clock, nap
        self._launched: LaunchedStep | None = None
        self._pace = StepPace()
        self._requests: dict[str, Request] = {}
        self._ended_early: list[str] = []
        self._counters = Counters()
        self._is_idle = False

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def statistics(self) -> EngineStatistics:
        """A snapshot that later steps do not change."""
        scheduler, counters = self.scheduler.statistics(), self._counters
        num_blocks, num_state_slots = self._sizes
        return EngineStatistics(
            num_requests=counters.num_requests,
            num_unfinished_requests=len(self._requests),
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            num_finished={reason.value: number for reason, number in scheduler.totals.num_finished.items()},
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_steps=scheduler.totals.num_steps.total(),
            num_failed_steps=counters.num_failed_steps,
            num_preemptions=scheduler.num_preemptions,
            num_numeric_errors=counters.num_numeric_errors,
            num_blocks=num_blocks,
            num_free_blocks=scheduler.num_free_blocks,
            num_state_slots=num_state_slots,
            num_free_state_slots=scheduler.num_free_state_slots,
            drafts=self.draft_log.total.metrics() if self.draft_log is not None else None,
        )

    @property
    def metrics_page(self) -> bytes | None:
        """The metrics in Prometheus' text format; None unless the setting ``metrics`` is on."""
        return self._reporter.page

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: Unique among the unfinished requests.
            prompt_token_ids: The prompt.
            params: How to sample.
            prompt: The prompt's text, for the record.
            priority: Lower values are served first.
            timeout_s: Seconds after which it ends with what it has.

        Raises:
            RequestError: The prompt or its parameters cannot be served, or the engine is closed; nothing was queued.
        """
        self._opened_runner()
        check_request_id(request_id, self._requests)
        if self.scheduler.is_full:
            self._reporter.event("request_rejected", reason="max_num_waiting")
        request = self._intake.request(
            request_id,
            prompt_token_ids,
            params,
            prompt=prompt,
            priority=priority,
            timeout_s=timeout_s,
            now=self._clock(),
        )
        if params.structured_outputs is not None:
            self._grammars.start(request)
        else:
            self._schedule(request)
        self._requests[request_id] = request
        self._counters.num_requests += 1
        self._counters.num_prompt_tokens += len(request.prompt_token_ids)

    def check(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Raise what :meth:`add` would raise for a request, apart from its id.

        Raises:
            RequestError: Token ids, length, parameters, priority or time-out cannot be served; every problem is listed.
        """
        self._opened_runner()
        self._intake.check(prompt_token_ids, params, priority, timeout_s)

    def abort(self, request_id: str) -> None:
        """End a request; its record comes with the next step. Unknown ids are ignored: it may just have ended."""
        if self._grammars.abort(request_id):
            self._ended_early.append(request_id)
        self.scheduler.abort(request_id)

    def discard(self, request_ids: Iterable[str]) -> None:
        """End requests whose records nobody wants any more: there will be none. Unknown ids are ignored."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)
            self._grammars.drop(request_id)
            self._requests.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns what is new, as each request wants to be told, and each ended one exactly once.

        With overlap, what is new comes from the step before the one that is launched here. When all that is left waits
        for leased memory or a disk, a step is a short nap: whoever calls in a loop does not spin.

        An exception out of the model or the sampler ends the completions that were in the step. Only what is no error
        of the step, such as an interrupt, leaves this call: then no step in flight happened.
        """
        runner, now = self._opened_runner(), self._clock()
        self._ended_early += self._grammars.take(now, self._schedule, self._reporter)
        try:
            touched = self._advance(runner, now)
        except BaseException:
            self._drop_steps()
            raise
        if self._storage is not None:
            self._storage.save(self.scheduler.prefix_cache.take_saves())
        records = self._records(touched)
        if self._is_idle and records:
            self._reporter.idle(num_waiting_grammar=len(self._grammars))
        if not records and self._requests and self._is_idle:
            self._nap(_NAP_S)
        return records

    def run(self) -> Iterator[RequestOutput]:
        """Step until nothing is left."""
        while self.has_unfinished:
            yield from self.step()

    def close(self) -> list[RequestOutput]:
        """Abort everything and give the memory back; returns the last records. More calls do nothing."""
        for request_id in list(self._requests):
            self.abort(request_id)
        self._drop_steps()
        if self._storage is not None and self._runner is not None:
            self._storage.close()
        self._runner = None
        records = self._records(())
        self._grammars.close()
        self._reporter.close()
        return records

    def _advance(self, runner: StepRunner, now: float) -> list[SequencePlan]:
        """Launch the next step and take the tokens of those that must have ended; returns the entries that got some."""
        plan = self.scheduler.plan(now)
        times = StepTimes(plan_s=self._clock() - now)
        self._is_idle = plan is None and self._launched is None
        if self._is_idle:
            self._pace.pause()
        before, self._launched = self._launched, self._launch(plan, runner, times) if plan is not None else None
        touched = self._finish(before) if before is not None else []
        launched = self._launched
        if launched is None:
            return touched
        is_sampled = self._sample(launched, runner)
        if not is_sampled or not self._overlaps or launched.plan.is_speculative or self._is_over(launched):
            self._launched = None
            touched += self._finish(launched) if is_sampled else []
        return touched

    def _launch(self, plan: StepPlan, runner: StepRunner, times: StepTimes) -> LaunchedStep | None:
        """Start a step; None when it failed."""
        now = self._clock()
        for entry in plan.entries:
            self._requests[entry.sequence.request_id].note_scheduled(entry, now)
        try:
            launched = runner.launch(plan, self._requests)
        except Exception as error:  # noqa: BLE001  # whatever a step raises is the misfortune of those in it
            self._fail_step(plan, error)
            return None
        times.launch_s = self._clock() - now
        launched.times = times
        return launched

    def _sample(self, launched: LaunchedStep, runner: StepRunner) -> bool:
        """Start the sampling of a step; False when that failed."""
        began = self._clock()
        try:
            runner.sample(launched, self._requests)
        except Exception as error:  # noqa: BLE001  # as above
            self._fail_step(launched.plan, error)
            return False
        launched.times.launch_s += self._clock() - began
        return True

    def _finish(self, launched: LaunchedStep) -> list[SequencePlan]:
        """Wait for a step and hand its tokens to the requests; returns the entries that got some."""
        plan, times, began = launched.plan, launched.times, self._clock()
        try:
            self.scheduler.reflect()
            launched.wait()
            now = self._clock()
            lap_s = self._pace.lap(now)
            tokens = {id(e): t for e, t in zip(launched.sampled, launched.tokens(), strict=True)}
            self._fail_unscored(plan)
            outcomes = [self._take(entry, tokens.get(id(entry)), now) for entry in plan.sampling_entries]
        except Exception as error:  # noqa: BLE001  # as above
            self._fail_step(plan, error)
        else:
            self.scheduler.apply(plan, outcomes)
            timing = launched.timing(lap_s)
            if timing is not None:
                self.scheduler.observe(timing)
            times.wait_s, times.apply_s = now - began, self._clock() - now
            self._reporter.step(launched, num_waiting_grammar=len(self._grammars), draft_log=self.draft_log)
        return list(plan.sampling_entries)

    def _schedule(self, request: Request) -> None:
        """Queue every sequence of a request, or none."""
        try:
            for sequence in request.sequences:
                self.scheduler.add(sequence)
        except RequestError:
            self.scheduler.abort(request.request_id)
            raise

    def _is_over(self, launched: LaunchedStep) -> bool:
        """True when nobody waits for a step any more."""
        return all(entry.sequence.is_finished for entry in launched.plan.entries)

    def _drop_steps(self) -> None:
        """Take back the steps in flight, the last one first; what they yield is not looked at."""
        self._launched = None
        self.scheduler.cancel_all()

    def _take(self, entry: SequencePlan, found: EntryTokens | None, now: float) -> Outcome:
        """Give a completion its tokens; it decides where it ends. One that ended meanwhile takes nothing."""
        request = self._request_of(entry.sequence)
        if request is None or found is None or entry.sequence.is_finished:
            return Outcome(token_ids=(), finish_reason=FinishReason.ABORT)
        completion = request.completions[entry.sequence.index]
        num_before, is_distrusted = entry.sequence.num_output_tokens, False
        if len(completion.token_ids) == num_before:
            for sampled in found.sampled:
                if completion.finish_reason is not None:
                    break
                if not sampled.is_finite:
                    is_distrusted = True
                    self._note_numeric_error()
                completion.push(sampled)
        tokens = tuple(completion.token_ids[num_before:])
        if self.draft_log is not None:
            self.draft_log.note(request, entry, found, len(tokens))
        if tokens:
            self._reporter.tokens(request, entry.sequence.index, now, len(tokens))
            request.note_token(now)
            self._counters.num_generated_tokens += len(tokens)
        reason = FinishReason(completion.finish_reason) if completion.finish_reason else None
        proposal = found.proposal.worthless_behind(completion.end_token_ids)
        return Outcome(token_ids=tokens, finish_reason=reason, proposal=proposal, is_distrusted=is_distrusted)

    def _fail_unscored(self, plan: StepPlan) -> None:
        """End requests that asked for log-probabilities of a prompt for which the model gives none."""
        for entry in plan.entries:
            request = self._request_of(entry.sequence)
            if (
                request is None
                or request.prompt_scores is None
                or request.prompt_scores.is_finite
                or entry.sequence.is_finished
            ):
                continue
            self._note_numeric_error()
            for sequence in request.sequences:
                self._fail(sequence, "the model's logits for a token of the prompt are not finite")

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        """End the completions of a step that raised; nothing that the step has written is read again."""
        log.error("a step of %d sequences failed", len(plan.entries), exc_info=error)
        self._counters.num_failed_steps += 1
        self._reporter.event("step_failed", error=type(error).__name__)
        for entry in plan.entries:
            self._fail(entry.sequence, f"the step with this request failed: {type(error).__name__}: {error}")
        self.scheduler.cancel(plan)

    def _note_numeric_error(self) -> None:
        self._counters.num_numeric_errors += 1
        self._reporter.event("numeric_error")

    def _fail(self, sequence: ScheduledSequence, error: str) -> None:
        request = self._request_of(sequence)
        if request is not None:
            request.completions[sequence.index].fail(error)
        self.scheduler.finish(sequence, FinishReason.ERROR)

    def _records(self, entries: Sequence[SequencePlan]) -> list[RequestOutput]:
        """What to tell about the requests of these entries and those that ended; the latter are let go."""
        early, self._ended_early = self._ended_early, []
        touched = [request_id for request_id in early if request_id in self._requests]
        touched += [e.sequence.request_id for e in entries if self._request_of(e.sequence) is not None]
        for sequence in self.scheduler.take_finished():
            request = self._requests.get(sequence.request_id)
            if request is not None and request.settle(sequence):
                touched.append(sequence.request_id)
        return [record for request_id in dict.fromkeys(touched) if (record := self._record(request_id)) is not None]

    def _request_of(self, sequence: ScheduledSequence) -> Request | None:
        """Whose sequence it is; None once its owner discarded it, even if the id is in use again."""
        request = self._requests.get(sequence.request_id)
        return request if request is not None and sequence in request.sequences else None

    def _record(self, request_id: str) -> RequestOutput | None:
        request = self._requests[request_id]
        if request.is_finished:
            request.finished_time = self._clock()
            del self._requests[request_id]
            self._reporter.ended(request)
        return request.record()

    def _opened_runner(self) -> StepRunner:
        if self._runner is None:
            raise RequestError("the engine is closed and takes no more requests; open the model again")
        return self._runner
