"""The sampler runs the stages that are asked for, row by row, whatever the batch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.backend.binding import Binder
from deepinfer_core.errors import InternalError
from deepinfer_core.runtime.sampled_rows import SampledToken
from deepinfer_core.runtime.sampler import Sampler
from deepinfer_core.runtime.sampling_tensors import SamplingRow, completion_seed
from deepinfer_core.sampling_params import SamplingParams

VOCAB, EOS = 50, 1


@pytest.fixture
def sampler(binder: Binder) -> Sampler:
    return Sampler(binder, vocab_size=VOCAB, eos_token_id=EOS)


def _row(
    seed: int = 0,
    position: int = 5,
    output: Sequence[int] = (),
    prompt: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    **params: Any,
) -> SamplingRow:
    return SamplingRow(
        params=SamplingParams(**params),
        seed=seed,
        position=position,
        output_token_ids=output,
        prompt_token_ids=prompt,
        bad_words=bad_words,
    )


def _logits(num_rows: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def _sample(sampler: Sampler, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    return sampler(logits, rows).on_host(rows)


def _ids(sampler: Sampler, logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    return [token.token_id for token in _sample(sampler, logits, rows)]


def test_a_seeded_request_gives_the_same_tokens_beside_any_neighbour(sampler: Sampler) -> None:
    """Case A18 of the bug reports: alone, then ten times beside an unseeded neighbour, in random order."""
    steps = _logits(12, seed=1)
    neighbours = random.Random(9)

    def generate(with_neighbour: bool) -> list[int]:
        tokens: list[int] = []
        for number, logits in enumerate(steps):
            mine = _row(seed=42, position=5 + number, output=tuple(tokens), top_p=0.95, frequency_penalty=0.2)
            batch = [(logits, mine)]
            if with_neighbour:
                other = _row(seed=neighbours.getrandbits(64), temperature=0.7, top_k=7, min_p=0.02, logit_bias={2: 5})
                batch.insert(neighbours.randrange(2), (_logits(1, seed=number)[0], other))
            rows = [row for _, row in batch]
            tokens.append(_ids(sampler, torch.stack([scores for scores, _ in batch]), rows)[rows.index(mine)])
        return tokens

    alone = generate(with_neighbour=False)

    assert all(generate(with_neighbour=True) == alone for _ in range(10))


def test_the_order_of_rows_changes_no_token(sampler: Sampler) -> None:
    logits = _logits(40)
    rows = [_row(seed=n, position=n % 7, temperature=(n % 3) / 2, top_k=n % 5, top_p=1 - n / 80) for n in range(40)]
    order = random.Random(2).sample(range(40), 40)

    plain = _ids(sampler, logits, rows)
    permuted = _ids(sampler, logits[order], [rows[n] for n in order])

    assert permuted == [plain[n] for n in order]


def test_greedy_and_sampled_rows_share_a_batch(sampler: Sampler) -> None:
    logits = _logits(3)
    greedy, sampled = _row(temperature=0), _row(temperature=1.3, seed=7)

    mixed = _ids(sampler, logits, [greedy, sampled, greedy])

    assert [mixed[0], mixed[2]] == logits[[0, 2]].argmax(-1).tolist()
    assert mixed[1] == _ids(sampler, logits[1:2], [sampled])[0]


def test_masked_rows_at_any_temperature_never_give_a_masked_token(sampler: Sampler) -> None:
    """Case A19 of the bug reports."""
    logits = (_logits(1, scale=2e4).clamp(-6e4, 6e4)).repeat(4, 1)
    logits[:, ::2] = -math.inf
    rows = [_row(temperature=t, seed=3) for t in (0, 1e-5, 1e-4, 1)]

    tokens = _sample(sampler, logits, rows)

    assert tokens[0].token_id == logits[0].argmax()
    assert all(token.token_id % 2 == 1 and not token.error for token in tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(sampler: Sampler, temperature: float, fault: float) -> None:
    """Case A20 of the bug reports; a whole row of -inf is as bad as one NaN."""
    logits = _logits(3)
    good = _ids(sampler, logits, [_row(temperature=temperature)] * 3)
    logits[1, 4 if fault != -math.inf else slice(None)] = fault

    tokens = _sample(sampler, logits, [_row(temperature=temperature, logprobs=2)] * 3)

    assert [token.token_id for token in tokens] == [good[0], -1, good[2]]
    assert "not finite" in tokens[1].error
    assert (tokens[0].error, tokens[1].logprobs, tokens[2].error) == ("", {}, "")


def test_a_fault_in_a_forbidden_column_still_fails_the_row(sampler: Sampler) -> None:
    logits = _logits(1)
    logits[0, 9] = math.nan

    token = _sample(sampler, logits, [_row(allowed_token_ids=[3, 4])])[0]

    assert token.token_id == -1
    assert "not finite" in token.error


def test_a_request_that_forbids_everything_fails_alone(sampler: Sampler) -> None:
    rows = [_row(temperature=0), _row(allowed_token_ids=[EOS], min_tokens=2, max_tokens=3)]

    tokens = _sample(sampler, _logits(2), rows)

    assert (tokens[0].error, tokens[1].token_id) == ("", -1)
    assert "leave no token" in tokens[1].error


def test_a_greedy_batch_runs_nothing_but_the_check_and_the_arg_max(binder: Binder) -> None:
    sampler = Sampler(binder, vocab_size=VOCAB, eos_token_id=EOS)
    called: list[str] = []
    for name, bound in vars(sampler).items():
        for stage in bound.values() if isinstance(bound, dict) else [bound]:
            if hasattr(stage, "op"):
                stage.run = _noting(called, name, stage.run)

    sampler(_logits(2), [_row(temperature=0), _row(temperature=0)])

    assert called == ["_finite_rows", "greedy"]


def _noting(called: list[str], name: str, run: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return run(*args, **kwargs)

    return noted


def test_the_end_of_text_and_stop_tokens_wait_for_the_minimum(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [EOS, 9, 20]] = torch.tensor([3.0, 2.0, 1.0])
    wish = {"temperature": 0, "min_tokens": 2, "stop_token_ids": [9]}

    assert _ids(sampler, logits, [_row(output=(4,), **wish)]) == [20]
    assert _ids(sampler, logits, [_row(output=(4, 4), **wish)]) == [EOS]


def test_bias_moves_and_allowed_tokens_bound_the_choice(sampler: Sampler) -> None:
    logits = _logits(3)
    rows = [
        _row(temperature=0, logit_bias={31: 100, 2: -100}),
        _row(allowed_token_ids=[49, 32, 7]),
        _row(temperature=0),
    ]

    ids = _ids(sampler, logits, rows)

    assert ids[0] == 31
    assert ids[1] in {49, 32, 7}
    assert ids[2] == logits[2].argmax()


@pytest.mark.parametrize(
    ("output", "chosen"),
    [((), 21), ((7,), 21), ((8,), 20), ((7, 8), 22), ((7, 8, 9), 21), ((1, 7, 8), 22)],
)
def test_the_last_token_of_a_bad_word_is_forbidden_behind_the_others(
    sampler: Sampler, output: tuple[int, ...], chosen: int
) -> None:
    """Bad words are ``8 21`` and ``7 8 20``; 21 is the likeliest token, then 20, then 22."""
    logits = torch.zeros(1, VOCAB)
    logits[0, [20, 21, 22]] = torch.tensor([2.0, 3.0, 1.0])

    rows = [_row(temperature=0, output=list(output), bad_words=((8, 21), (7, 8, 20)))]

    assert _ids(sampler, logits, rows) == [chosen]


def test_a_bad_word_of_one_token_never_comes_whatever_the_bias(sampler: Sampler) -> None:
    rows = [_row(seed=seed, logit_bias={31: 100}, bad_words=((31,),)) for seed in range(50)]

    assert 31 not in _ids(sampler, _logits(50), rows)


def test_known_tokens_are_scored_and_rows_that_are_not_finite_give_nothing(sampler: Sampler) -> None:
    logits = _logits(3)
    logits[1, 3] = math.nan

    scores = sampler.score(logits, [4, 5, 6], 2).on_host([4, 5, 6], 2)

    expected = logits.log_softmax(-1)
    best = logits[2].argsort(descending=True)[:2].tolist()
    assert scores[1] == {}
    assert list(scores[2]) == list(dict.fromkeys([6, *best]))
    assert scores[0][4].logprob == pytest.approx(expected[0, 4].item(), abs=1e-5)


def test_completions_of_a_request_draw_with_seeds_of_their_own() -> None:
    seeds = {completion_seed(seed, index) for seed in range(50) for index in range(128)}

    assert len(seeds) == 50 * 128
    assert completion_seed(7, 0) == 7
    assert completion_seed(2**64 - 1, 127) < 2**64


def test_penalties_read_the_history_of_their_own_row(sampler: Sampler) -> None:
    logits = torch.zeros(4, VOCAB)
    logits[:, 10], logits[:, 11] = 2.0, 1.9
    rows = [
        _row(temperature=0, repetition_penalty=1.2, prompt=(10, 400)),
        _row(temperature=0, presence_penalty=0.5, prompt=(10,), output=(11,)),
        _row(temperature=0, frequency_penalty=0.06, output=(10, 10)),
        _row(temperature=0, output=(10, 10, 10)),
    ]

    assert _ids(sampler, logits, rows) == [11, 10, 11, 10]


def test_logprobs_are_those_of_the_model_and_cut_to_each_request(sampler: Sampler) -> None:
    logits = _logits(3)
    rows = [_row(temperature=0, logprobs=2, logit_bias={6: 100}), _row(logprobs=0, seed=4), _row()]

    tokens = _sample(sampler, logits, rows)

    expected = logits.log_softmax(-1)
    best = logits[0].argsort(descending=True)[:2].tolist()
    assert list(tokens[0].logprobs) == [6, *best]
    assert tokens[0].logprobs[6].logprob == pytest.approx(expected[0, 6].item(), abs=1e-5)
    assert [tokens[0].logprobs[token].rank for token in best] == [1, 2]
    assert list(tokens[1].logprobs) == [tokens[1].token_id]
    assert tokens[2].logprobs == {}


def test_more_alternatives_than_tokens_give_the_whole_vocabulary(sampler: Sampler) -> None:
    token = _sample(sampler, _logits(1), [_row(temperature=0, logprobs=900)])[0]

    assert len(token.logprobs) == VOCAB
    assert [value.rank for value in token.logprobs.values()] == list(range(1, VOCAB + 1))


def test_the_largest_seed_and_an_empty_batch_are_taken(sampler: Sampler) -> None:
    assert _ids(sampler, _logits(1), [_row(seed=2**64 - 1)])[0] >= 0
    assert _ids(sampler, _logits(0), []) == []


def test_logits_are_not_changed(sampler: Sampler) -> None:
    logits = _logits(1)
    before = logits.clone()

    sampler(logits, [_row(logit_bias={1: 3}, allowed_token_ids=[1, 2], presence_penalty=1.0, output=(1,), top_k=2)])

    assert torch.equal(logits, before)


def test_a_token_beyond_the_vocabulary_is_our_own_mistake(sampler: Sampler) -> None:
    with pytest.raises(InternalError, match="bug in DeepInfer"):
        sampler(_logits(1), [_row(logit_bias={VOCAB: 1.0})])
