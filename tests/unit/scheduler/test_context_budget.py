"""The contexts of a prompt step fit into the memory that was declared for gathering them."""

from __future__ import annotations

from tests.unit.scheduler.builders import add, make_scheduler, planned, rows


def test_prompts_with_long_contexts_share_no_step_that_could_not_gather_them() -> None:
    scheduler = make_scheduler(num_blocks=64, max_model_len=1000, max_num_batched_tokens=600, max_chunk_tokens=100)
    add(scheduler, "a", "b", "c", num_prompt_tokens=700)

    # 1000 + 600 tokens of context: two prompts of 700, though rows are left for a third
    assert rows(planned(scheduler)) == [("a", 0, 100), ("b", 0, 100)]


def test_a_prompt_that_is_alone_always_fits() -> None:
    scheduler = make_scheduler(num_blocks=64, max_model_len=1000, max_num_batched_tokens=16)
    add(scheduler, "a", num_prompt_tokens=990)

    assert rows(planned(scheduler)) == [("a", 0, 16)]
