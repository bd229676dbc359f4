"""Rules that end a completion, what is in its text, and stop texts across tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.engine.completion import Completion
from deepinfer_core.engine.stop_text import StopText
from deepinfer_core.engine.tokenizer import Tokenizer
from deepinfer_core.runtime.sampled_rows import SampledToken, TokenLogprob

EOS = 1


@pytest.fixture(scope="module")
def tokenizer(llm: LLM) -> Tokenizer:
    return llm.get_tokenizer()


def grown(tokenizer: Tokenizer | None, token_ids: Sequence[int], **params: Any) -> Completion:
    """A completion that was given tokens until it ended."""
    completion = Completion(0, SamplingParams(**params), tokenizer, EOS)
    for token in token_ids:
        if completion.finish_reason is not None:
            break
        completion.push(SampledToken(token_id=token, logprobs={token: TokenLogprob(-0.5, 1)}))
    return completion


def grow(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Text before the first stop text, found piece by piece."""
    search, text = StopText(stops), ""
    for piece in pieces:
        text += piece
        found = search.find(text, len(piece))
        if found:
            return text[: found.start], found.stop
    return text, None


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5), st.data())
def test_any_split_into_pieces_finds_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    found = grow(stops, pieces)

    assert found == grow(stops, list(text))
    assert (found[1] is None) == (not any(s in text for s in stops))


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5))
def test_what_may_begin_a_stop_text_is_held_back(text: str, stops: list[str]) -> None:
    held = StopText(stops).num_held_back(text)

    longest = max((n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    assert held == longest


def test_ten_thousand_stop_texts_are_looked_up_not_tried() -> None:
    class Counted(str):
        comparisons = 0
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            Counted.comparisons += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    search = StopText([Counted(f"stop number {n}") for n in range(10_000)])

    assert search.find("a long answer " * 1000, 5) is None
    assert Counted.comparisons < 100
    assert search.find("a long answer stop number 77", 3) is not None


def test_ids_logprobs_and_text_end_together_at_a_stop_text(tokenizer: Tokenizer) -> None:
    """Case A22 of the bug reports: several tokens come at once and the stop text ends within them."""
    ids = tokenizer.encode("red fox ha ha ha ha")

    ended = grown(tokenizer, ids, max_tokens=50, stop=[" ha ha"], logprobs=0).output()

    assert ended.text == "red fox"
    assert " ha ha" in tokenizer.decode(ended.token_ids)
    assert " ha ha" not in tokenizer.decode(ended.token_ids[:-1])
    assert ended.logprobs is not None
    assert [list(row) for row in ended.logprobs] == [[token] for token in ended.token_ids]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", " ha ha")


def test_a_stop_text_ends_a_completion_inside_a_thought_too(tokenizer: Tokenizer) -> None:
    """Case A10 of the bug reports: a completion is one text; who shows only the answer looks for stops in it."""
    ids = tokenizer.encode("<think>Question: 6 times 7?</think>42")

    ended = grown(tokenizer, ids, stop=["Question:"], skip_special_tokens=False).output()

    assert (ended.finish_reason, ended.stop_reason) == ("stop", "Question:")
    assert ended.text.endswith("<think>")


def test_the_stop_text_stays_when_that_is_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("red fox blue lamp")

    ended = grown(tokenizer, ids, stop=["blue"], include_stop_str_in_output=True)

    assert ended.output().text == "red fox blue"


def test_the_text_of_a_stop_token_is_left_out_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("red fox blue lamp")

    without = grown(tokenizer, ids, stop_token_ids=[ids[2]]).output()
    included = grown(tokenizer, ids, stop_token_ids=[ids[2]], include_stop_str_in_output=True).output()

    assert (without.text, without.stop_reason, without.token_ids) == ("red fox", ids[2], tuple(ids[:3]))
    assert included.text == "red fox blue"


@pytest.mark.parametrize(
    ("skip", "include", "text"), [(True, True, "red"), (False, False, "red"), (False, True, "red<｜end▁of▁sentence｜>")]
)
def test_the_end_token_is_spelt_out_only_for_who_wants_specials_and_the_stop(
    tokenizer: Tokenizer, skip: bool, include: bool, text: str
) -> None:
    ids = [*tokenizer.encode("red"), EOS]

    ended = grown(tokenizer, ids, skip_special_tokens=skip, include_stop_str_in_output=include).output()

    assert (ended.text, ended.finish_reason, ended.stop_reason) == (text, "stop", None)


def test_special_tokens_inside_the_text_follow_their_switch(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("red"), EOS, *tokenizer.encode(" fox")]

    texts = [
        grown(tokenizer, ids, ignore_eos=True, max_tokens=len(ids), skip_special_tokens=skip).output().text
        for skip in (True, False)
    ]

    assert texts == ["red fox", "red<｜end▁of▁sentence｜> fox"]


def test_without_detokenization_there_are_tokens_and_no_text(tokenizer: Tokenizer) -> None:
    ended = grown(tokenizer, tokenizer.encode("red fox"), detokenize=False, logprobs=0, max_tokens=2).output()

    assert (ended.text, len(ended.token_ids)) == ("", 2)
    assert ended.logprobs is not None
    assert ended.logprobs[0][ended.token_ids[0]].decoded_token is None


def test_ends_before_the_minimum_are_passed_over(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("red fox red fox red fox")

    ended = grown(tokenizer, ids, stop=["fox"], min_tokens=3).output()

    assert ended.text == "red fox red "


def test_news_are_what_came_since_the_last_and_join_to_everything(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("red fox č blue lamp"), EOS]
    params = SamplingParams(max_tokens=50, stop=["blue moon"], logprobs=0)
    completion = Completion(0, params, tokenizer, EOS)

    news = []
    for token in ids:
        completion.push(SampledToken(token_id=token, logprobs={token: TokenLogprob(-0.5, 1)}))
        news.append(completion.news())

    assert "".join(record.text for record in news) == completion.output().text == "red fox č blue lamp"
    assert [token for record in news for token in record.token_ids] == ids
    assert [token for record in news for row in record.logprobs for token in row] == ids
    assert completion.news() is None


def test_the_first_end_stands(tokenizer: Tokenizer) -> None:
    completion = grown(tokenizer, [*tokenizer.encode("red"), EOS])

    completion.finish("abort")
    completion.fail("too late")

    assert (completion.finish_reason, completion.error) == ("stop", "")
