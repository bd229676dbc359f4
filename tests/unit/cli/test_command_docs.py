"""docs/cli.md has a section for every command, with every option that the command has and no other."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from deepinfer_core.cli.main import COMMANDS, build_parser
from deepinfer_core.cli.model_options import (
    add_drafting_options,
    add_engine_options,
    add_model_options,
    add_sampling_options,
)

PAGE = Path(__file__).parents[3] / "docs/cli.md"
GROUPS = {
    "model": add_model_options,
    "engine": add_engine_options,
    "drafting": add_drafting_options,
    "sampling": add_sampling_options,
}
OPTION = re.compile(r"`(--[a-z-]+)`")


def sections(level: str) -> dict[str, str]:
    """Title -> text of the sections of the page with headings of one level."""
    parts = re.split(rf"^{level} (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text.split("\n## ")[0] for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Long options of a parser, those of its kinds included."""
    found = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= set.union(*map(options, action.choices.values()))
    return found - {"--help"}


def parser_of(command: str) -> argparse.ArgumentParser:
    action = next(a for a in build_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices[command]


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    titles = {title.removeprefix("deepinfer ") for title in sections("##") if title.startswith("deepinfer ")}

    assert titles == set(COMMANDS)


@pytest.mark.parametrize("name", GROUPS)
def test_options_that_commands_share_are_all_listed(name: str) -> None:
    parser = argparse.ArgumentParser()
    GROUPS[name](parser)
    article = {"model": "a ", "engine": "an "}.get(name, "")

    assert set(OPTION.findall(sections("###")[f"Options of {article}{name}"])) == options(parser)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_command_are_those_of_its_section(command: str) -> None:
    section = sections("##")[f"deepinfer {command}"]
    taken = re.search(r"the options of ([^.]+)\.", section)
    documented = {option for row in section.splitlines() if row.startswith("| `--") for option in OPTION.findall(row)}

    for name, add in GROUPS.items():
        if taken is not None and name in taken[1]:
            parser = argparse.ArgumentParser()
            add(parser)
            documented |= options(parser)

    assert documented == options(parser_of(command))


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_both_kinds_of_benchmark_have_the_same_options(kind: str) -> None:
    kinds = next(a for a in parser_of("bench")._actions if isinstance(a, argparse._SubParsersAction)).choices

    assert options(kinds[kind]) == options(parser_of("bench"))


@pytest.mark.parametrize("command", ["generate", "chat", "bench", "fit", "describe"])
def test_help_has_examples_that_parse(command: str) -> None:
    text = parser_of(command).format_help()
    examples = text.split("examples:\n")[1].split("\n\n")[0].splitlines()

    assert len(examples) >= 3
    for example in examples:
        words = re.findall(r'"[^"]*"|\S+', example.split("deepinfer ", 1)[1])
        build_parser(command).parse_args([word.strip('"') for word in words])
