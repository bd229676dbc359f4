"""``deepinfer chat``: a conversation on the terminal, or from a pipe with one question on each line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from deepinfer_core.cli.answer import Answer
from deepinfer_core.cli.model_options import (
    add_drafting_options,
    add_engine_options,
    add_model_options,
    add_sampling_options,
    open_llm,
    sampling_params,
)
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.cli.terminal import enable_line_editing, is_interactive, read_line, wants_color
from deepinfer_core.errors import NumericError, RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.chat import Message
    from deepinfer_core.llm import LLM
    from deepinfer_core.sampling_params import SamplingParams

PROMPT = "> "
NO_REASONING = "none"

HELP = """\
/new           start over
/system TEXT   start over with a system message; /system alone takes it away
/help          this list
/quit          end, as Ctrl-D does; Ctrl-C ends an answer"""

_EPILOG = f"""\
in a conversation:
  {HELP.replace(chr(10), chr(10) + "  ")}

examples:
  deepinfer chat tiny
  deepinfer chat tiny --system "Be brief." --reasoning-effort high
  printf 'What is 17 + 25?\\n' | deepinfer chat tiny

Only answers go to stdout. With reasoning the thought comes first: dimmed on a terminal, unless NO_COLOR is set, and
between <think> and </think> elsewhere. From a pipe the exit code is 1 when some question could not be answered.
"""

_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?")


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "chat",
        description="Talk to a model; it sees the conversation so far.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    add_engine_options(parser)
    add_drafting_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--reasoning-effort", default=NO_REASONING, metavar="E", help="none (default), low, high or max"
    )
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read lines and answer them until the input ends."""
    params = sampling_params(args)
    with open_llm(args, max_num_seqs=1) as llm:
        conversation = Conversation(llm, params, system=args.system or "", reasoning_effort=args.reasoning_effort)
        if is_interactive():
            enable_line_editing()
            _say(HELP)
        while (line := _next_line()) is not None:
            if not conversation.take(line):
                break
    return 1 if conversation.num_failed and not is_interactive() else 0


class Conversation:
    """The turns so far, and what a line does to them.

    Attributes:
        messages: The system message, if there is one, and all turns.
        num_failed: Questions that could not be answered.
    """

    def __init__(self, llm: LLM, params: SamplingParams, *, system: str, reasoning_effort: str) -> None:
        self._llm, self._params, self._effort = llm, params, reasoning_effort
        self.messages: list[Message] = []
        self.num_failed = 0
        self._start(system)

    def take(self, line: str) -> bool:
        """Obey or answer a line; False ends the conversation."""
        command = _COMMAND.fullmatch(line)
        if command is not None:
            return self._obey(command[1], command[2] or "")
        if line:
            self._answer(line)
        return True

    def _obey(self, name: str, rest: str) -> bool:
        match name:
            case "quit":
                return False
            case "new":
                self._start(self._system)
            case "system":
                self._start(rest)
            case "help":
                _say(HELP)
            case _:
                self.num_failed += 1
                _say(f"deepinfer: there is no command /{name}\n{HELP}")
        return True

    def _start(self, system: str) -> None:
        self._system = system
        self.messages = [{"role": "system", "content": system}] if system else []

    def _answer(self, question: str) -> None:
        """Answer a question; one that fails leaves no trace in the conversation."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": question}]
        answer = Answer(begins_with_thought=self._effort != NO_REASONING, is_styled=wants_color(sys.stdout))
        try:
            ids = self._llm.encode_chat(asked, reasoning_effort=self._effort)
            answer.follow(self._llm.stream({"prompt_token_ids": ids}, self._params))
        except (RequestError, NumericError) as error:
            self.num_failed += 1
            _say(f"deepinfer: {error}; /new starts over")
            return
        except KeyboardInterrupt:
            if not is_interactive():
                raise
        sys.stdout.write("\n")
        sys.stdout.flush()
        if answer.finish_reason is None:
            _say("(interrupted)")
        elif answer.finish_reason == "length":
            _say(f"(cut off after {answer.num_tokens} tokens; --max-tokens allows more)")
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]


def _next_line() -> str | None:
    """The next line; Ctrl-C while a person types it throws it away."""
    while True:
        try:
            return read_line(PROMPT)
        except KeyboardInterrupt:
            if not is_interactive():
                raise
            _say("")


def _say(text: str) -> None:
    """Tell the person, not the program that reads the answers."""
    print(text, file=sys.stderr)
