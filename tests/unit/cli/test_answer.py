"""An answer on the terminal: text as it comes, thoughts apart, styles only where they show."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from deepinfer_core.cli.answer import Answer
from deepinfer_core.cli.terminal import wants_color
from deepinfer_core.errors import NumericError
from deepinfer_core.outputs import CompletionOutput, RequestOutput


def records(*texts: str, reason: str | None = "stop", error: str = "") -> Iterator[RequestOutput]:
    """One record for each text so far; the last one ends the request."""
    for number, text in enumerate(texts, 1):
        ends = number == len(texts)
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=tuple(range(number)),
            finish_reason=reason if ends else None,
            error=error if ends else "",
        )
        yield RequestOutput(request_id="0", prompt=None, prompt_token_ids=(1,), outputs=(completion,), finished=ends)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_only_new_text_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer()

    answer.follow(records("4", "42", "42"))

    assert capsys.readouterr().out == "42"
    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("42", 3, "stop")


def test_a_thought_stands_between_its_marks(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(begins_with_thought=True)

    answer.follow(records("8 +", "8 + 9.", "8 + 9.</think>", "8 + 9.</think>17"))

    assert capsys.readouterr().out == "<think>\n8 + 9.\n</think>\n17"
    assert (answer.thought, answer.text) == ("8 + 9.", "17")


def test_a_terminal_shows_the_thought_fainter(capsys: pytest.CaptureFixture[str]) -> None:
    Answer(begins_with_thought=True, is_styled=True).follow(records("8.", "8.</think>17"))

    assert capsys.readouterr().out == "\x1b[2m8.\x1b[22m\n\n17"


def test_a_thought_that_is_cut_off_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(begins_with_thought=True)

    answer.follow(records("8 +", "8 + 9", reason="length"))

    assert capsys.readouterr().out == "<think>\n8 + 9\n</think>\n"
    assert (answer.thought, answer.text, answer.finish_reason) == ("8 + 9", "", "length")


def test_the_mark_is_plain_text_where_no_thought_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Answer().follow(records("a </think> b"))

    assert capsys.readouterr().out == "a </think> b"


def test_a_request_that_fails_raises_after_what_it_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NumericError, match="after 2 tokens: not finite"):
        Answer().follow(records("4", "4", reason="error", error="not finite"))

    assert capsys.readouterr().out == "4"


def test_an_interrupt_leaves_what_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Iterator[RequestOutput]:
        yield from records("4", "42", reason=None)
        raise KeyboardInterrupt

    answer = Answer()
    with pytest.raises(KeyboardInterrupt):
        answer.follow(interrupted())

    assert (answer.text, answer.finish_reason) == ("42", None)


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_styles_need_a_terminal_and_no_objection(stream: io.StringIO, environ: dict[str, str], expected: bool) -> None:
    assert wants_color(stream, environ) is expected
