"""What goes wrong in one place stays there: failed steps, rows that are not finite, interrupts, closing."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from deepinfer_core import LLM, RequestOutput, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel
from deepinfer_core.engine.step_runner import StepExecutor
from deepinfer_core.errors import RequestError
from deepinfer_core.runtime.batch import SequenceRows
from deepinfer_core.runtime.executor import HiddenRows
from tests.engine.chaos import Improviser, play
from tests.engine.conftest import MakeEngine, question

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
BLOCK_BYTES = 35840
NUM_REQUESTS = 100


@dataclass
class Faulty:
    """Runs the model, and then what a test wants to go wrong."""

    inner: StepExecutor
    before_run: Callable[[Sequence[SequenceRows]], None] = lambda rows: None
    after_logits: Callable[[Tensor], Tensor] = lambda logits: logits
    sizes: list[int] = field(default_factory=list)

    def forward(self, sequences: Sequence[SequenceRows], *, prefill: bool) -> HiddenRows:
        self.sizes.append(len(sequences))
        self.before_run(sequences)
        return self.inner.forward(sequences, prefill=prefill)

    def remember(self, token_ids: Tensor, slots: Sequence[int]) -> None:
        self.inner.remember(token_ids, slots)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.inner.copy_slots(pairs)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.after_logits(self.inner.logits(hidden))


def add(engine: Engine, llm: LLM, request_id: str, text: str, params: SamplingParams = GREEDY) -> None:
    engine.add(request_id, llm.encode(question(text)), params)


def finals(engine: Engine) -> dict[str, RequestOutput]:
    """The last records, each of which must be the only one of its request."""
    records = [output for output in engine.run() if output.finished]
    assert len({record.request_id for record in records}) == len(records)
    return {record.request_id: record for record in records}


def is_empty(engine: Engine) -> bool:
    """Nothing waits, runs or holds memory."""
    engine.scheduler.require_all_free()
    return not engine.has_unfinished and not engine.scheduler.has_unfinished


def test_a_step_that_raises_ends_the_requests_in_it_and_no_others(llm: LLM, make_engine: MakeEngine) -> None:
    def fail_at_two(rows: Sequence[SequenceRows]) -> None:
        if len(rows) == 2:
            raise RuntimeError("the device is on fire")

    engine = make_engine(max_num_seqs=2, wrap_executor=lambda inner: Faulty(inner, before_run=fail_at_two))
    for number, text in enumerate(["Copy this: owl fox", "Copy this: fox lamp", "Compute 60 + 15."]):
        add(engine, llm, str(number), text)

    ended = finals(engine)

    assert [ended[i].outputs[0].finish_reason for i in "012"] == ["error", "error", "stop"]
    assert "RuntimeError: the device is on fire" in ended["0"].outputs[0].error
    assert ended["2"].outputs[0].text == "75"
    assert engine.statistics().num_failed_steps == 1
    assert is_empty(engine)


def test_a_failed_decode_step_keeps_what_was_generated_before(llm: LLM, make_engine: MakeEngine) -> None:
    failing = iter([False, False, False, True])

    def fail_at_fourth(rows: Sequence[SequenceRows]) -> None:
        if next(failing, False):
            raise ValueError("no more")

    # with overlap the token of the third step is still on its way when the fourth fails
    engine = make_engine(overlap="off", wrap_executor=lambda inner: Faulty(inner, before_run=fail_at_fourth))
    add(engine, llm, "a", "Repeat exactly: red fox blue lamp")

    ended = finals(engine)["a"].outputs[0]
    add(engine, llm, "b", "Compute 60 + 15.")

    assert (len(ended.token_ids), ended.finish_reason) == (3, "error")
    assert "red fox blue lamp".startswith(ended.text)
    assert finals(engine)["b"].outputs[0].text == "75"
    assert is_empty(engine)


def test_an_exception_in_the_sampler_ends_the_step_not_the_engine(llm: LLM, make_engine: MakeEngine) -> None:
    narrow = iter([True])
    engine = make_engine(
        wrap_executor=lambda inner: Faulty(inner, after_logits=lambda x: x[:, :7] if next(narrow, False) else x)
    )
    add(engine, llm, "a", "Copy this: owl fox")

    assert "sampler" in finals(engine)["a"].outputs[0].error
    add(engine, llm, "a", "Copy this: owl fox")
    assert finals(engine)["a"].outputs[0].text == "owl fox"
    assert is_empty(engine)


def test_a_row_that_is_not_finite_fails_alone_and_is_counted(llm: LLM, make_engine: MakeEngine) -> None:
    """Case A20 of the bug reports."""
    poison = iter([True])

    def spoil_second_row(logits: Tensor) -> Tensor:
        if len(logits) == 3 and next(poison, False):
            logits = logits.clone()
            logits[1] = torch.nan
        return logits

    engine = make_engine(wrap_executor=lambda inner: Faulty(inner, after_logits=spoil_second_row))
    for number, text in enumerate(["Compute 60 + 15.", "Copy this: owl fox", "Copy this: fox lamp"]):
        add(engine, llm, str(number), text)

    ended = finals(engine)

    assert [ended[i].outputs[0].finish_reason for i in "012"] == ["stop", "error", "stop"]
    assert "not finite" in ended["1"].outputs[0].error
    assert [ended[i].outputs[0].text for i in "02"] == ["75", "fox lamp"]
    assert engine.statistics().num_numeric_errors == 1
    assert is_empty(engine)


def test_a_prompt_without_finite_logits_fails_the_request_that_asked_for_them(
    llm: LLM, make_engine: MakeEngine
) -> None:
    def spoil_prompts(logits: Tensor) -> Tensor:
        return logits * torch.nan if len(logits) > 2 else logits

    engine = make_engine(wrap_executor=lambda inner: Faulty(inner, after_logits=spoil_prompts))
    add(engine, llm, "asks", "Copy this: owl fox", SamplingParams(temperature=0, prompt_logprobs=0))
    add(engine, llm, "other", "Copy this: owl fox")

    ended = finals(engine)

    assert ended["asks"].outputs[0].finish_reason == "error"
    assert "prompt" in ended["asks"].outputs[0].error
    assert ended["other"].outputs[0].text == "owl fox"
    assert is_empty(engine)


def test_an_interrupt_takes_the_step_back_and_the_same_tokens_come_later(llm: LLM, make_engine: MakeEngine) -> None:
    interrupts = iter([False, False, True])

    def interrupt(rows: Sequence[SequenceRows]) -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt

    engine = make_engine(wrap_executor=lambda inner: Faulty(inner, before_run=interrupt))
    add(engine, llm, "a", "Repeat exactly: red fox blue lamp")
    with pytest.raises(KeyboardInterrupt):
        finals(engine)

    assert finals(engine)["a"].outputs[0].text == "red fox blue lamp"
    assert is_empty(engine)


def test_ctrl_c_during_generate_aborts_and_leaves_the_model_clean() -> None:
    with LLM("tiny", accelerator="cpu", max_model_len=512, max_num_seqs=4) as own:
        endless = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
        free = own.statistics().num_free_blocks
        prompts = [question("Tell a story about a zebra named Anton.")] * 3
        presser = threading.Thread(target=press_ctrl_c_while_running, args=(own,))
        presser.start()

        with pytest.raises(KeyboardInterrupt):
            own.generate(prompts, endless, use_tqdm=False)

        presser.join()
        assert (own.statistics().num_unfinished_requests, own.statistics().num_free_blocks) == (0, free)
        assert own.generate(question("Compute 60 + 15."), GREEDY)[0].outputs[0].text == "75"


def press_ctrl_c_while_running(llm: LLM) -> None:
    while llm.statistics().num_generated_tokens < 6:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_abort_gives_one_last_record_with_what_was_there(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(overlap="off")  # the third token is there after the third step
    add(engine, llm, "a", "Repeat exactly: red fox blue lamp")
    for _ in range(3):
        engine.step()

    engine.abort("a")
    engine.abort("a")
    ended = finals(engine)["a"]

    assert (ended.outputs[0].finish_reason, len(ended.outputs[0].token_ids)) == ("abort", 3)
    engine.abort("a")
    assert is_empty(engine)


def test_a_request_may_end_by_its_time_limit(llm: LLM, make_engine: MakeEngine) -> None:
    seconds = iter(range(1000))
    engine = make_engine(clock=lambda: float(next(seconds)))
    engine.add("a", llm.encode(question("Tell a story about a zebra named Anton.")), GREEDY, timeout_s=12.0)

    ended = finals(engine)["a"].outputs[0]

    assert ended.finish_reason == "timeout"
    assert 0 < len(ended.token_ids) < 24


def test_closing_ends_everything_once_and_later_calls_say_so(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine()
    add(engine, llm, "a", "Copy this: owl fox")
    engine.step()
    add(engine, llm, "b", "Copy this: fox lamp")

    last = engine.close()

    assert [(record.request_id, record.outputs[0].finish_reason) for record in last] == [("a", "abort"), ("b", "abort")]
    assert engine.close() == []
    assert is_empty(engine)
    for call in (engine.step, lambda: add(engine, llm, "c", "Copy this: owl fox")):
        with pytest.raises(RequestError, match="closed"):
            call()


def test_a_closed_model_says_so_and_open_streams_end() -> None:
    own = LLM("tiny", accelerator="cpu", max_model_len=512, max_num_seqs=4)
    stream = own.stream(question("Tell a story about a zebra named Anton."), GREEDY)
    next(stream)

    own.close()
    own.close()

    assert [record.outputs[0].finish_reason for record in stream] == ["abort"]
    for call in (
        lambda: own.generate("a"),
        lambda: own.chat([{"role": "user", "content": "a"}]),
        lambda: own.stream("a"),
        lambda: own.encode("a"),
        own.statistics,
        own.get_tokenizer,
    ):
        with pytest.raises(RequestError, match="this LLM is closed"):
            call()


def test_a_request_id_may_be_used_again_when_its_request_has_ended(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine()
    add(engine, llm, "a", "Copy this: owl fox")
    with pytest.raises(RequestError, match="'a' is unfinished already"):
        add(engine, llm, "a", "Copy this: fox lamp")
    with pytest.raises(RequestError, match="request_id=7 must be a text"):
        add(engine, llm, 7, "Copy this: fox lamp")  # type: ignore[arg-type]

    engine.discard(["a"])
    add(engine, llm, "a", "Copy this: fox lamp")

    assert finals(engine)["a"].outputs[0].text == "fox lamp"
    assert is_empty(engine)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_each_request_gets_exactly_one_last_record(
    llm: LLM, opened: OpenedModel, make_engine: MakeEngine, seed: int
) -> None:
    source, ticks = random.Random(seed), iter(range(10**6))
    engine = make_engine(
        max_num_seqs=6,
        max_num_batched_tokens=64,
        kv_cache_memory_gib=9.5 * BLOCK_BYTES / 2**30,
        clock=lambda: float(next(ticks)),
        wrap_executor=lambda _: Improviser(source, llm.get_tokenizer().vocab_size, opened.model.device.torch_device),
    )
    records = play(engine, source, NUM_REQUESTS)

    completions = [completion for record in records if record.finished for completion in record.outputs]
    assert {"length", "abort", "error", "timeout"} <= {completion.finish_reason for completion in completions}
    assert is_empty(engine)
