"""Every setting: fields of the configuration records, names of the environment, options of the command line."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any

from deepinfer_core.cli.main import COMMANDS
from deepinfer_core.cli.model_options import (
    add_drafting_options,
    add_engine_options,
    add_model_options,
    add_sampling_options,
)
from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.config.env import NAMES
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.config.numerics import VARIANTS, Numerics
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.config.speculation import SpeculativeConfig
from deepinfer_core.sampling_params import SamplingParams
from generator.markdown import code, inline, page, parse_docstring, table

_INTRODUCTION = """\
# Configuration

Every choice of a run is a field of a frozen record that is checked when it is made; all problems are reported at once.
A later source wins: default, settings file, environment, command line or keyword argument. `LLM.settings` has the
values and says where each came from. What a model is comes from its checkpoint alone:
[checkpoint.md](checkpoint.md)."""

_ENGINE = """\
## Engine

`LLM(model, **settings)` takes these fields by name; `fallback` may be given as a word. A settings file is TOML with the
same names, and `DEEPINFER_CONFIG` names it:

```toml
accelerator = "cpu"
max_num_seqs = 64
fallback = "decompose"
```"""

_SPECULATION = """\
## Speculative decoding

The fields of `speculative_config`, which is a `SpeculativeConfig` (`deepinfer_core.config.speculation`), a mapping of
its fields, or a table of the settings file; even an empty one turns speculative decoding on:

```toml
[speculative_config]
num_draft_tokens = 3
verification = "adaptive"
```

vLLM's name `num_speculative_tokens` counts as `num_draft_tokens`. What the command line or a mapping gives wins over
the table field by field; a `SpeculativeConfig`, None or `--draft-tokens 0` replaces all of it."""

_SCHEDULER = """\
## Scheduler

Made by the engine from its own fields; those that have no counterpart there keep their default."""

_SAMPLING = """\
## Sampling parameters

`SamplingParams`, one for each request. The commands have options for some of them; there `temperature` is 0 unless
given."""

_NUMERICS = """\
## Arithmetic

The variants that `numerics` names; what they are for: [numerics.md](numerics.md)."""

_ENVIRONMENT = """\
## Environment

These names and no others; any other name that begins with `DEEPINFER_` is an error. Variables of vendors (which devices
are visible, for one) belong to the backend of that vendor."""

_COMMANDS = """\
## Command line

Options of every command, besides `--log-level` in front of it and `--help`. Exit codes: [errors.md](errors.md)."""


def configuration_pages() -> dict[str, str]:
    """Path below ``docs/`` -> text."""
    return {
        "configuration.md": page(
            _INTRODUCTION,
            _ENGINE,
            _record(EngineConfig, options=[*_options(add_model_options), *_options(add_engine_options)]),
            _SPECULATION,
            _record(SpeculativeConfig, options=_options(add_drafting_options)),
            _SCHEDULER,
            _record(SchedulerConfig),
            _SAMPLING,
            _record(SamplingParams, options=_options(add_sampling_options)),
            _NUMERICS,
            _variants(),
            "## Fallback policies",
            _policies(),
            _ENVIRONMENT,
            table(("name", "sets"), [(code(name), meaning) for name, meaning in NAMES.items()]),
            _COMMANDS,
            *(_command(name, summary) for name, summary in COMMANDS.items()),
        )
    }


def _record(record: type, options: Sequence[argparse.Action] = ()) -> str:
    """Fields of a dataclass with types, defaults and meanings, and the option that sets each."""
    meanings = parse_docstring(inspect.getdoc(record) or "").items["Attributes"]
    by_name = {action.dest: ", ".join(action.option_strings) or action.dest.upper() for action in options}
    declared = {f.name: f for f in fields(record)}
    rows = [
        (
            code(name),
            code(_type(parameter.annotation)),
            _default(parameter, declared.get(name)),
            *((code(by_name.get(name, "")),) if options else ()),
            meanings[name],
        )
        for name, parameter in inspect.signature(record).parameters.items()
    ]
    return table(("field", "type", "default", *(("command line",) if options else ()), "meaning"), rows)


def _type(annotation: str) -> str:
    """The type of a parameter, also of one that is no field (``InitVar``)."""
    return annotation.removeprefix("InitVar[").removesuffix("]") if annotation.startswith("InitVar[") else annotation


def _default(parameter: inspect.Parameter, declared: Field[Any] | None) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "required"
    if declared is not None and declared.default_factory is not MISSING:
        return code(repr(declared.default_factory()))
    return code(_plain(parameter.default))


def _plain(value: object) -> str:
    """A value as a user writes it."""
    return value.value if isinstance(value, Enum) else repr(value)


def _variants() -> str:
    meanings = parse_docstring(inspect.getdoc(Numerics) or "").items["Attributes"]
    rows = [
        (code(f.name), *(code(_plain(getattr(v, f.name))) for v in VARIANTS.values()), meanings[f.name])
        for f in fields(Numerics)
        if f.name != "name"
    ]
    return table(("field", *VARIANTS, "meaning"), rows)


def _policies() -> str:
    """The policies with the outcomes of binding that each accepts."""
    outcomes = ("native", "decomposed", "reference")
    rows = [(code(p.value), *("yes" if p.accepts(o) else "no" for o in outcomes)) for p in FallbackPolicy]
    return table(("policy", *outcomes), rows)


def _command(name: str, summary: str) -> str:
    subparsers = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"deepinfer_core.cli.{name}").register(subparsers)
    rows = [(code(_spelling(action)), inline(_help(action))) for action in _actions(subparsers.choices[name])]
    return f"### deepinfer {name}\n\n{summary[0].upper()}{summary[1:]}.\n\n" + table(("option", "meaning"), rows)


def _spelling(action: argparse.Action) -> str:
    """How an option or argument is written on the command line."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    return " ".join(filter(None, ["|".join(action.option_strings), value]))


def _help(action: argparse.Action) -> str:
    """The help text, with the choices where it does not name them itself."""
    text = (action.help or "") % {**vars(action), "prog": "deepinfer"}
    named = [str(choice) for choice in action.choices or ()]
    return f"{text}; one of {', '.join(named)}" if not all(choice in text for choice in named) else text


def _options(add: Callable[[argparse.ArgumentParser], None]) -> list[argparse.Action]:
    """The options that a function adds to a parser."""
    parser = argparse.ArgumentParser()
    add(parser)
    return _actions(parser)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    actions = parser._actions  # noqa: SLF001  # argparse has no public list of them
    return [action for action in actions if action.dest != "help"]
