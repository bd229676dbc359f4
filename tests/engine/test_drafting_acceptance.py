"""As many drafts stand as stood when the tiny model was made, at every place of a block and behind long prompts."""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import mean

import pytest

from deepinfer_core import SamplingParams
from tests.engine.drafting import HELDOUT, finish, model, start

ACCEPTED = {
    "add": 3.11, "sub": 2.11, "sort": 5.16, "reverse": 3.61, "copy": 4.88, "count": 1.00, "json": 4.57, "code": 4.80,
    "tool": 5.89, "recall": 3.20, "story": 5.14, "think": 4.95, "recall_400": 1.88,
}  # fmt: skip
"""Tokens of a step over the prompts of each task, by another implementation (the table that comes with the model)."""
PROMPTS_OF_A_TASK = 4
LEAST_AT_A_PLACE = 0.85
"""Share of drafts that stand when those before them do; 0.9 and more as a rule."""


@pytest.fixture(scope="module")
def answers(accelerator: str) -> dict[str, list[tuple[float, list[int], list[int]]]]:
    """For each prompt of a task: tokens of a step, and how often each place of a block was verified and accepted."""
    opened = model(accelerator)
    assert opened.tokenizer is not None
    items: defaultdict[str, list[str]] = defaultdict(list)
    for item in map(json.loads, HELDOUT.read_text(encoding="utf-8").splitlines()):
        if item["task"] in ACCEPTED and len(items[item["task"]]) < PROMPTS_OF_A_TASK:
            items[item["task"]].append(item["prompt"])
    params = SamplingParams(temperature=0, max_tokens=128)
    asked = {
        f"{task} {number}": (opened.tokenizer.encode(prompt), params)
        for task, prompts in items.items()
        for number, prompt in enumerate(prompts)
    }
    engine = start(opened, max_model_len=1024, speculative_config={"verification": "fixed"})
    found: defaultdict[str, list[tuple[float, list[int], list[int]]]] = defaultdict(list)
    for name, record in finish(engine, asked).items():
        drafts = record.metrics.drafts
        assert drafts is not None
        num_tokens = len(record.outputs[0].token_ids) - 1  # the first comes from the prompt
        found[name.split()[0]].append((num_tokens / drafts.num_blocks, list(drafts.verified), list(drafts.accepted)))
    engine.close()
    return dict(found)


def test_as_many_drafts_stand_as_when_the_model_was_trained(answers) -> None:
    found = {task: mean(tokens for tokens, _, _ in own) for task, own in answers.items()}

    assert found.keys() == ACCEPTED.keys()
    assert mean(found.values()) == pytest.approx(mean(ACCEPTED.values()), rel=0.1), found


def test_no_place_of_a_block_collapses(answers) -> None:
    """Of short prompts, whose text the draft module sees; drafts behind the end of an answer were never judged."""
    short = [row for task, own in answers.items() if not task.startswith("recall") for row in own]
    accepted = [sum(row[2][place] for row in short) for place in range(5)]
    ended = 1.0 * len(short)  # one block of each answer ends it

    for place in range(1, 5):
        assert accepted[place] >= LEAST_AT_A_PLACE * (accepted[place - 1] - ended), accepted
