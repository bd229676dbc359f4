"""However a prompt of any length is cut into steps, logits and caches are those of feeding it at once."""

from __future__ import annotations

import pytest

from deepinfer_core.runtime.model import BoundModel
from tests.model.compare import assert_same, assert_same_caches
from tests.model.conftest import IMAGES, Whole
from tests.model.driver import Driver


def test_logits_of_a_position_do_not_depend_on_what_follows(whole: dict[int, Whole]) -> None:
    longest = whole[max(whole)].logits

    for length, prefix in whole.items():
        assert_same(prefix.logits, longest[:length], f"prompt of {length} tokens")


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_every_prompt_length_in_chunks_equals_one_step(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole], chunk: int
) -> None:
    """Full chunks from the start; for every length that is no multiple a fork ends with a shorter chunk."""
    driver = Driver(mini_b)
    forks = [driver.sequence(prompt, IMAGES) for _ in range(chunk)]

    for start in range(0, len(prompt), chunk):
        ends = list(zip(forks, range(1, min(chunk, len(prompt) - start) + 1), strict=False))
        logits = driver.feed(*ends, prefill=True)

        for (fork, _), rows in zip(ends, logits, strict=True):
            where = f"{fork.length} tokens in chunks of {chunk}"
            assert_same(rows, whole[fork.length].logits[start:], where)
            assert_same_caches(driver.cached(fork), whole[fork.length].cached, where)
        for fork in forks[:-1]:
            driver.copy(forks[-1], fork)


def test_every_prompt_length_token_by_token_equals_one_step(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole]
) -> None:
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt, IMAGES)

    for length in range(1, len(prompt) + 1):
        (logits,) = driver.feed((sequence, 1))

        where = f"{length} tokens one by one"
        assert_same(logits, whole[length].logits[-1:], where)
        assert_same_caches(driver.cached(sequence), whole[length].cached, where)


@pytest.mark.parametrize("first", [31, 32, 33, 64])
def test_a_chunk_longer_than_the_ring_continues_a_prompt(
    mini_b: BoundModel, prompt: list[int], whole: dict[int, Whole], first: int
) -> None:
    """The chunk overwrites ring rows that its own first tokens still attend to."""
    driver = Driver(mini_b)
    sequence = driver.sequence(prompt, IMAGES)

    driver.feed((sequence, first), prefill=True)
    (logits,) = driver.feed((sequence, len(prompt) - first), prefill=True)

    assert_same(logits, whole[len(prompt)].logits[first:], f"second chunk after {first} tokens")
    assert_same_caches(driver.cached(sequence), whole[len(prompt)].cached, f"second chunk after {first} tokens")
