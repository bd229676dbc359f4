"""Rejection sampling judges each draft by the distribution that it was drawn from, whoever had its place before."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core import SamplingParams
from deepinfer_core.engine import step_sampler
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel
from tests.engine.drafting import (
    BLOCK,
    Asked,
    drafter_of,
    finish,
    heldout_prompts,
    may_wait,
    model,
    random_lengths,
    runner_of,
    shown,
    start,
)

KINDS = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 30},
    {"temperature": 1.0, "min_p": 0.02, "repetition_penalty": 1.2},
]


def asked(accelerator: str, count: int = 12) -> Asked:
    """Requests with seeds of their own, by which the sampler's rows tell whose they are."""
    return {
        str(seed): (ids, SamplingParams(**KINDS[seed % len(KINDS)], seed=seed, max_tokens=8 + seed, ignore_eos=True))
        for seed, ids in enumerate(heldout_prompts(accelerator, 40)[:count])
    }


@dataclass
class Witness:
    """Sees what drafts are drawn from and what they are judged with.

    Attributes:
        drawn: Latest drafts of each seed: anchor, number of the pass, log-probabilities and tokens.
        ages: How many passes before the latest the judged drafts were made.
        num_judged: Drafts that were compared.
        chances: Whether each draft was accepted, and the chance of that.
    """

    engine: Engine
    drawn: dict[int, tuple[int, int, list[Tensor], list[int]]] = field(default_factory=dict)
    ages: Counter[int] = field(default_factory=Counter)
    num_judged: int = 0
    chances: list[tuple[bool, float]] = field(default_factory=list)
    _pass: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _number: int = 0

    def watch(self) -> Witness:
        may_wait(self.engine)
        drafter, ops = drafter_of(self.engine), runner_of(self.engine)._model.drafting
        propose, verify, samples = drafter.propose, ops.verify, list(ops.samples)

        def proposing(token_ids: Tensor, positions: Tensor, slots: Sequence[int], rows: Sequence[Any]) -> Any:
            self._pass = []
            made = propose(token_ids, positions, slots, rows)
            self._number += 1
            for place, (row, anchor) in enumerate(zip(rows, positions.tolist(), strict=True)):
                laws = [law[place] for law, _ in self._pass]
                drafts = [int(tokens[place]) for _, tokens in self._pass]
                assert not drafts or made.token_ids[place].tolist() == drafts
                self.drawn[row.seed] = anchor, self._number, laws, drafts
            return made

        def sampling(place: int) -> Any:
            def sample(logprobs: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
                tokens = samples[place](logprobs, seeds, positions)
                self._pass.append((logprobs.clone(), tokens.clone()))
                return tokens

            return sample

        def judging(target: Tensor, drafts: Tensor, laws: Tensor, seeds: Tensor, positions: Tensor) -> Any:
            found = verify(target, drafts, laws, seeds, positions)
            for row, (draft, seed, position) in enumerate(
                zip(drafts.tolist(), seeds.tolist(), positions.tolist(), strict=True)
            ):
                is_greedy = KINDS[seed % len(KINDS)]["temperature"] == 0.0
                if draft < 0 or is_greedy:
                    continue
                anchor, number, own, tokens = self.drawn[seed]
                place = position - anchor - 1
                assert tokens[place] == draft, "another draft is judged than was drawn"
                assert torch.equal(laws[row], own[place]), "a draft is judged with another law than its own"
                self.num_judged += 1
                self.ages[self._number - number] += 1
                self.chances.append((bool(found[0][row]), float(found[2][row])))
            return found

        drafter.propose = proposing
        ops.verify = judging
        ops.samples = [sampling(place) for place in range(len(samples))]
        return self


def watched(accelerator: str, num_drafts: int = BLOCK) -> OpenedModel:
    """A model whose ops of speculation may be replaced, and are called in every step instead of recorded."""
    opened = model(accelerator, num_drafts, coupled=False)
    drafting = copy.copy(opened.model.drafting)
    return replace(opened, model=replace(opened.model, drafting=drafting, captures_graphs=False))


@pytest.mark.parametrize("num_drafts", [2, BLOCK])
def test_a_draft_is_judged_by_the_law_that_it_was_drawn_from(accelerator: str, num_drafts: int) -> None:
    """Few places, which many requests use one after the other; prompts come between two steps of the others."""
    engine = start(watched(accelerator, num_drafts), max_num_seqs=3, planner=random_lengths(3))
    witness = Witness(engine).watch()

    finish(engine, asked(accelerator), staggered=True)

    assert witness.num_judged > 50
    assert sum(count for age, count in witness.ages.items() if age), "no sequence skipped a step"
    accepted = sum(is_accepted for is_accepted, _ in witness.chances)
    expected = sum(chance for _, chance in witness.chances)
    assert 0 < accepted < witness.num_judged
    assert abs(accepted - expected) < 4 * (witness.num_judged**0.5) / 2


def test_greedy_requests_among_drawn_ones_get_the_likeliest_tokens(accelerator: str) -> None:
    many = asked(accelerator)
    greedy = {key: one for key, one in many.items() if not one[1].temperature}
    expected = shown(finish(start(model(accelerator, 0)), greedy))

    found = shown(finish(start(model(accelerator, coupled=False)), many, staggered=True))

    assert {key: found[key] for key in greedy} == expected


@pytest.mark.parametrize("coupled", [True, False])
def test_rows_are_sampled_in_pieces_without_a_difference(
    accelerator: str, coupled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {
        key: (ids, replace_logprobs(params, 2 if int(key) % 2 else None))
        for key, (ids, params) in asked(accelerator).items()
    }
    whole = shown(finish(start(model(accelerator, coupled=coupled), max_num_seqs=12), many))

    for rows in (1, 7):
        monkeypatch.setattr(step_sampler, "ROWS_AT_ONCE", rows)
        pieces = shown(finish(start(model(accelerator, coupled=coupled), max_num_seqs=12), many))
        assert pieces == whole


def replace_logprobs(params: SamplingParams, logprobs: int | None) -> SamplingParams:
    seed = params.seed or 0
    kind = KINDS[seed % len(KINDS)]
    return SamplingParams(**kind, seed=seed, max_tokens=params.max_tokens, ignore_eos=True, logprobs=logprobs)


@pytest.mark.parametrize("coupled", [True, False])
def test_laws_of_drafts_are_kept_where_they_are_needed(accelerator: str, coupled: bool) -> None:
    opened = model(accelerator, 3, coupled=coupled)
    drafter = drafter_of(start(opened, max_num_seqs=4))

    kept = drafter._distributions
    if coupled:
        assert kept is None
        assert drafter.distributions([0], [0]) is None
    else:
        assert tuple(kept.shape) == (5, 3, opened.model.architecture.vocab_size)
        assert kept.dtype == torch.float32


@pytest.mark.slow
def test_the_first_tokens_have_the_law_of_plain_sampling(accelerator: str) -> None:
    """Pairs of second and third token over many seeds, against plain sampling with other seeds (B2)."""
    ids = heldout_prompts(accelerator, 15)[0]
    count = 3000

    def pairs(num_drafts: int, first_seed: int) -> Counter[tuple[int, ...]]:
        engine = start(
            model(accelerator, num_drafts, coupled=False),
            max_num_seqs=128,
            planner=random_lengths(1) if num_drafts else None,
        )
        many: Asked = {
            str(seed): (ids, SamplingParams(temperature=1.0, top_k=4, seed=first_seed + seed, max_tokens=4))
            for seed in range(count)
        }
        return Counter(record.outputs[0].token_ids[1:3] for record in finish(engine, many).values())

    plain, drafted = pairs(0, 10**6), pairs(BLOCK, 0)

    common = [pair for pair in plain | drafted if plain[pair] + drafted[pair] >= 10]
    chi_square = sum((plain[p] - drafted[p]) ** 2 / (plain[p] + drafted[p]) for p in common)
    degrees = max(len(common) - 1, 1)
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5 + 4


def test_a_seed_repeats_an_answer_when_the_blocks_are_the_same(accelerator: str) -> None:
    many = asked(accelerator, 6)
    first, second = (shown(finish(start(model(accelerator, coupled=False)), many)) for _ in range(2))

    assert first == second


def test_random_company_leaves_the_law_of_each_draft_alone(accelerator: str) -> None:
    """Aborts in between: a place that is used again holds the laws of its new owner."""
    engine, source = start(watched(accelerator), max_num_seqs=3), random.Random(2)
    witness = Witness(engine).watch()
    for key, one in asked(accelerator).items():
        engine.add(key, *one)

    while engine.has_unfinished:
        engine.step()
        if source.random() < 0.3:
            engine.abort(str(source.randrange(12)))

    assert witness.num_judged > 10
    engine.scheduler.require_all_free()
