"""Many coroutines on one model: each gets its own records, errors and end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from deepinfer_core import LLM, AsyncLLM, RequestOutput, SamplingParams
from deepinfer_core.errors import InternalError, RequestError
from tests.engine.conftest import question

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
STORY = question("Tell a story about a zebra named Anton.")


@pytest.fixture(scope="module")
def async_llm() -> AsyncLLM:
    return AsyncLLM("tiny", accelerator="cpu", max_num_seqs=8, max_model_len=512)


async def last(llm: AsyncLLM, prompt: Any, params: SamplingParams = GREEDY, **options: Any) -> RequestOutput:
    """The record that ends a request; it must be the only such one."""
    records = [output async for output in llm.generate(prompt, params, **options)]
    assert [record.finished for record in records] == [False] * (len(records) - 1) + [True]
    return records[-1]


def run(test: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60))


def test_many_consumers_get_their_own_answers(async_llm: AsyncLLM, llm: LLM) -> None:
    prompts = [question(f"Copy this: {word}") for word in ("owl", "fox", "red fox", "blue lamp")] * 3

    async def test() -> list[RequestOutput]:
        return await asyncio.gather(*(last(async_llm, prompt) for prompt in prompts))

    texts = [output.outputs[0].text for output in run(test())]

    assert texts == [output.outputs[0].text for output in llm.generate(prompts, GREEDY)]


def test_seeded_requests_get_the_tokens_that_they_get_alone(async_llm: AsyncLLM, llm: LLM) -> None:
    params = [SamplingParams(temperature=1.5, seed=seed, max_tokens=10) for seed in range(4)]

    async def test() -> list[RequestOutput]:
        return await asyncio.gather(*(last(async_llm, STORY, one) for one in params))

    together = [output.outputs[0].token_ids for output in run(test())]

    assert together == [llm.generate(STORY, one)[0].outputs[0].token_ids for one in params]


def test_conversations_are_answered(async_llm: AsyncLLM) -> None:
    async def test() -> str:
        messages = [{"role": "user", "content": "Compute 60 + 15."}]
        return "".join(
            [
                output.outputs[0].text
                async for output in async_llm.chat(
                    messages, SamplingParams(temperature=0, output_kind="delta"), reasoning_effort="none"
                )
            ]
        )

    assert run(test()) == "75"


def test_errors_reach_the_consumer_that_made_them(async_llm: AsyncLLM) -> None:
    async def test() -> list[Any]:
        return await asyncio.gather(
            last(async_llm, {"prompt_token_ids": [5000]}),
            last(async_llm, question("Compute 60 + 15.")),
            last(async_llm, 5),
            last(async_llm, "", SamplingParams()),
            return_exceptions=True,
        )

    wrong_ids, fine, wrong_type, empty = run(test())

    assert isinstance(wrong_ids, RequestError)
    assert "5000" in str(wrong_ids)
    assert fine.outputs[0].text == "75"
    assert "give a text" in str(wrong_type)
    assert "no tokens" in str(empty)


def test_cancelling_a_consumer_aborts_its_request_and_no_other(async_llm: AsyncLLM) -> None:
    async def test() -> tuple[Any, RequestOutput]:
        started = asyncio.Event()

        async def consume() -> None:
            async for _ in async_llm.generate(STORY, ENDLESS):
                started.set()

        doomed = asyncio.create_task(consume())
        other = asyncio.create_task(last(async_llm, question("Repeat exactly: red fox blue lamp")))
        await started.wait()
        doomed.cancel()
        output = await other
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return await async_llm.statistics(), output

    statistics, output = run(test())

    assert output.outputs[0].text == "red fox blue lamp"
    assert (statistics.num_unfinished_requests, statistics.num_running) == (0, 0)
    assert statistics.num_free_blocks == statistics.num_blocks


def test_leaving_the_loop_aborts_the_request(async_llm: AsyncLLM) -> None:
    async def test() -> Any:
        stream = async_llm.generate(STORY, ENDLESS)
        async for _ in stream:
            break
        await stream.aclose()
        return await async_llm.statistics()

    assert run(test()).num_unfinished_requests == 0


def test_a_cancelled_consumer_that_was_still_waiting_leaves_nothing(async_llm: AsyncLLM) -> None:
    async def test() -> Any:
        tasks = [asyncio.create_task(last(async_llm, STORY, ENDLESS)) for _ in range(12)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await async_llm.statistics()

    assert run(test()).num_unfinished_requests == 0


def test_an_abort_by_id_ends_the_stream_with_its_record(async_llm: AsyncLLM) -> None:
    async def test() -> RequestOutput:
        async for output in async_llm.generate(STORY, ENDLESS, request_id="mine"):
            if len(output.outputs[0].token_ids) == 3:
                await async_llm.abort("mine")
            if output.finished:
                return output
        raise AssertionError("no last record")

    ended = run(test())
    run(async_llm.abort("unknown"))

    assert ended.request_id == "mine"
    assert ended.outputs[0].finish_reason == "abort"


def test_an_id_in_use_is_refused_and_its_owner_goes_on(async_llm: AsyncLLM) -> None:
    async def test() -> list[Any]:
        first = asyncio.create_task(last(async_llm, STORY, GREEDY, request_id="same"))
        await asyncio.sleep(0.02)
        return await asyncio.gather(first, last(async_llm, STORY, GREEDY, request_id="same"), return_exceptions=True)

    results = run(test())

    assert sorted(type(result).__name__ for result in results) == ["RequestError", "RequestOutput"]
    assert any("'same' is unfinished already" in str(r) for r in results if isinstance(r, RequestError))


def test_requests_end_in_the_order_of_their_priority(async_llm: AsyncLLM) -> None:
    async def test() -> list[int]:
        ended: list[int] = []

        async def consume(priority: int) -> None:
            await last(async_llm, STORY, SamplingParams(temperature=0.0, max_tokens=4, n=1), priority=priority)
            ended.append(priority)

        tasks = [asyncio.create_task(last(async_llm, STORY, GREEDY)) for _ in range(8)]
        await asyncio.sleep(0.05)
        await asyncio.gather(*(consume(priority) for priority in (1, 1, 1, 1, 1, 1, 1, 1, -1)), *tasks)
        return ended

    assert run(test()).index(-1) < 8


def test_closing_ends_every_stream_once_and_later_calls_say_so() -> None:
    async def test() -> tuple[list[RequestOutput], list[str]]:
        async with AsyncLLM("tiny", accelerator="cpu", max_num_seqs=2, max_model_len=512) as own:
            tasks = [asyncio.create_task(last(own, STORY, ENDLESS)) for _ in range(4)]
            while (await own.statistics()).num_generated_tokens < 4:
                await asyncio.sleep(0.01)
            await own.close()
            ended = await asyncio.gather(*tasks)
        await own.close()
        assert not own._thread._thread.is_alive()
        refusals: list[str] = []
        for call in (last(own, STORY), own.abort("x"), own.statistics()):
            with pytest.raises(RequestError, match="closed") as caught:
                await call
            refusals.append(str(caught.value))
        return ended, refusals

    ended, refusals = run(test())

    assert [output.outputs[0].finish_reason for output in ended] == ["abort"] * 4
    assert len(refusals) == 3


def test_a_model_that_nobody_holds_ends_its_thread() -> None:
    own = AsyncLLM("tiny", accelerator="cpu", max_num_seqs=2, max_model_len=512)
    thread, reference = own._thread._thread, weakref.ref(own)

    del own
    gc.collect()

    assert reference() is None
    assert not thread.is_alive()


def test_an_engine_that_breaks_tells_everybody() -> None:
    async def test() -> list[Any]:
        own = AsyncLLM("tiny", accelerator="cpu", max_num_seqs=2, max_model_len=512)
        tasks = [asyncio.create_task(last(own, STORY, ENDLESS)) for _ in range(3)]
        while (await own.statistics()).num_generated_tokens < 4:
            await asyncio.sleep(0.01)
        await asyncio.wrap_future(own._thread.call(lambda engine: engine.scheduler.plan(0.0)))  # as a bug would
        results = await asyncio.gather(*tasks, return_exceptions=True)
        late = await asyncio.gather(last(own, STORY), return_exceptions=True)
        await own.close()
        return [*results, *late]

    results = run(test())

    assert all(isinstance(result, InternalError) for result in results)
    assert all("the engine broke" in str(result) for result in results)


def test_a_program_may_end_without_closing() -> None:
    code = (
        "import asyncio\n"
        "from deepinfer_core import AsyncLLM, SamplingParams\n"
        "llm = AsyncLLM('tiny', accelerator='cpu', max_num_seqs=2, max_model_len=512)\n"
        "async def main():\n"
        "    params = SamplingParams(max_tokens=400, ignore_eos=True)\n"
        "    async for output in llm.generate({'prompt_token_ids': [5]}, params):\n"
        "        return print(len(output.outputs[0].token_ids))\n"
        "asyncio.run(main())\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
