"""``deepinfer chat`` on the tiny model: lines, commands, history, pipes and terminals."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.cli.chat import Conversation

TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
"""Makes stdin the terminal that Ctrl-C on it belongs to."""
COMMAND = [sys.executable, "-c", "import sys; from deepinfer_core.cli.main import main; sys.exit(main())"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture
def conversation(llm: LLM) -> Conversation:
    return Conversation(llm, GREEDY, system="", reasoning_effort="none")


def test_turns_are_answered_and_remembered(conversation: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    assert conversation.take("What is 17 + 25?")
    assert conversation.take("Copy this: hat ring ring")

    assert capsys.readouterr().out == "42\nhat ring ring\n"
    assert [(turn["role"], turn["content"]) for turn in conversation.messages] == [
        ("user", "What is 17 + 25?"),
        ("assistant", "42"),
        ("user", "Copy this: hat ring ring"),
        ("assistant", "hat ring ring"),
    ]


def test_earlier_turns_are_part_of_the_prompt(llm: LLM, conversation: Conversation) -> None:
    conversation.take("What is 17 + 25?")
    asked = [*conversation.messages, {"role": "user", "content": "Copy this: hat ring ring"}]

    assert "42" in llm.decode(llm.encode_chat(asked))


def test_new_and_system_start_over(conversation: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    conversation.take("What is 17 + 25?")
    conversation.take("/system Be brief.")
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]

    conversation.take("What is 17 + 25?")
    conversation.take("/new")
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]

    conversation.take("/system")
    assert conversation.messages == []
    assert capsys.readouterr().err == ""


def test_help_quit_and_commands_that_are_none(conversation: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    assert conversation.take("/help")
    assert conversation.take("/nwe")
    assert conversation.take("")
    assert not conversation.take("/quit")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("/new           start over") == 2
    assert "there is no command /nwe" in captured.err
    assert conversation.num_failed == 1


def test_a_path_is_no_command(conversation: Conversation) -> None:
    conversation.take("/etc/hosts")

    assert conversation.messages[0] == {"role": "user", "content": "/etc/hosts"}


def test_a_question_that_cannot_be_answered_leaves_no_trace(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation.take("owl " * 20000)

    assert conversation.messages == []
    assert conversation.num_failed == 1
    assert "/new starts over" in capsys.readouterr().err

    conversation.take("What is 17 + 25?")
    assert capsys.readouterr().out == "42\n"


def test_an_answer_that_is_cut_off_says_so(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    short = SamplingParams(temperature=0.0, max_tokens=2)

    Conversation(llm, short, system="", reasoning_effort="none").take("Tell a story about a zebra named Anton.")

    assert capsys.readouterr().err == "(cut off after 2 tokens; --max-tokens allows more)\n"


def test_a_thought_is_shown_and_not_remembered(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(llm, GREEDY, system="", reasoning_effort="high")

    conversation.take("Add the numbers: 86, 9")

    assert capsys.readouterr().out == "<think>\n86 + 9 = 95.\n</think>\n95\n"
    assert conversation.messages[-1]["content"] == "95"


def test_questions_come_from_a_pipe_and_one_that_fails_sets_the_exit_code() -> None:
    lines = "What is 17 + 25?\n/system Be brief.\n/nwe\n\nCopy this: hat ring ring"

    done = subprocess.run(
        [*COMMAND, "--log-level", "error", "chat", "tiny", "--accelerator", "cpu"],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.stdout == "42\nhat ring ring\n"
    assert done.returncode == 1
    assert done.stderr.startswith("deepinfer: there is no command /nwe\n")


def test_an_interrupt_ends_a_pipe_with_130() -> None:
    command = [*COMMAND, "--log-level", "error", "chat", "tiny", "--accelerator", "cpu"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("What is 17 + 25?\n")
        process.stdin.flush()
        assert process.stdout.readline() == "42\n"

        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == "deepinfer: interrupted\n"


class Typist:
    """Runs a command on a terminal of its own and types."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{TAKE_TERMINAL}; {COMMAND[-1]}", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **environ},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen, self._place = "", 0

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> str:
        """Read until a text comes behind the one that was waited for before; returns all up to its end."""
        while (found := self.seen.find(text, self._place)) < 0:
            assert self._read(seconds=90), f"{text!r} did not come; seen: {self.seen!r}"
        begin, self._place = self._place, found + len(text)
        return self.seen[begin : self._place]

    def interrupt_until(self, text: str) -> str:
        """Press Ctrl-C, again when nothing happens: Python misses one that comes just before it waits for a key."""
        for _ in range(30):
            self.type("\x03")
            while self._read(seconds=1):
                if text in self.seen[self._place :]:
                    return self.wait_for(text)
        return self.wait_for(text)

    def _read(self, seconds: float) -> bool:
        """Read what is there, once something is; False when nothing comes."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if ready:
            self.seen += os.read(self._terminal, 65536).decode(errors="replace")
        return bool(ready)

    def leave(self) -> int:
        """Type /quit; returns the exit code."""
        self.type("/quit\r")
        code = self._process.wait(timeout=60)
        os.close(self._terminal)
        return code


def test_a_person_edits_lines_recalls_them_and_throws_one_away() -> None:
    person = Typist("--log-level", "error", "chat", "tiny", "--accelerator", "cpu", "--max-tokens", "400")
    person.wait_for("> ")

    person.type("What is 17 + 26\x7f5?\r")
    first = person.wait_for("> ")
    person.type("\x1b[A\r")
    recalled = person.wait_for("> ")
    person.type("nonsense")
    person.wait_for("nonsense")
    person.interrupt_until("> ")
    person.type("Tell a story about a zebra named Anton.\r")
    person.wait_for("Once")
    person.type("\x03")
    person.wait_for("(interrupted)")
    person.wait_for("> ")
    code = person.leave()

    assert "42\r\n" in first
    assert "17 + 25?" in recalled
    assert "Traceback" not in person.seen
    assert code == 0


def test_a_person_sees_a_thought_fainter() -> None:
    arguments = ("chat", "tiny", "--accelerator", "cpu", "--reasoning-effort", "high", "--max-tokens", "24")
    person = Typist("--log-level", "error", *arguments, NO_COLOR="")
    person.wait_for("> ")

    person.type("Add the numbers: 86, 9\r")
    answer = person.wait_for("> ")
    person.leave()

    assert "\x1b[2m8" in answer
    assert "<think>" not in answer
    assert "\r\n95\r\n" in answer
