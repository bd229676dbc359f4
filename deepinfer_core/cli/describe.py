"""``deepinfer describe``: settings of a run and where each came from, the model, its caches, and what it runs on."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from deepinfer_core.backend.registry import AUTO
from deepinfer_core.cli.model_options import (
    add_drafting_options,
    add_engine_options,
    add_model_options,
    given_settings,
    open_llm,
)
from deepinfer_core.cli.output_file import check_outputs, write_json
from deepinfer_core.cli.parsing import add_output_options
from deepinfer_core.cli.sizes import size
from deepinfer_core.cli.subparsers import Subparsers
from deepinfer_core.cli.table import columns
from deepinfer_core.config.speculation import SpeculativeConfig
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.backend.registry import BackendState
    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.settings import Resolved
    from deepinfer_core.engine.model_config import ModelConfig
    from deepinfer_core.model.cache_layout import CacheLayout

_EPILOG = """\
examples:
  deepinfer describe tiny
  deepinfer describe tiny --accelerator cpu --numerics f32 --bind
  DEEPINFER_CONFIG=settings.toml deepinfer describe tiny --json described.json

Only the model's config is read; the word released describes the released model without a network. With --bind the
model is loaded and bound as a run would do it, and every op is listed with how it runs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """Everything that is shown."""

    settings: Resolved
    config: ModelConfig
    layout: CacheLayout
    backends: Sequence[BackendState]
    chosen: str
    binding: BindingReport | None


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "describe",
        description="Show what a run with these options, this environment and this settings file would be: every "
        "setting with its source, the model's shape, its caches, and which backend serves it and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    add_engine_options(parser)
    add_drafting_options(parser)
    parser.add_argument("--bind", action="store_true", help="load the model and show how each op runs")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Gather and print."""
    check_outputs({"--json": args.json}, overwrite=args.overwrite)
    description = _describe(args)
    print("\n".join(_lines(description)))
    if args.json:
        write_json(args.json, _as_json(description))
    return 0


def _describe(args: argparse.Namespace) -> _Description:
    from deepinfer_core.backend.registry import describe_backends, select
    from deepinfer_core.config.settings import resolve
    from deepinfer_core.engine.model_config import fetch_config, find_config
    from deepinfer_core.model.cache_layout import cache_layout

    settings = resolve({"model": args.model, **given_settings(args)}, args.environment)
    config = find_config(args.model, download=partial(fetch_config, cache_dir=settings.config.download_dir))
    if args.bind and config.is_shipped:
        raise ConfigError(
            f"{args.model} is a config without weights, so it cannot be bound; leave --bind out, or name a checkpoint",
            source="describe",
        )
    binding = None
    if args.bind:
        with open_llm(args) as llm:
            binding = llm.binding_report
    return _Description(
        settings=settings,
        config=config,
        layout=cache_layout(config.architecture),
        backends=describe_backends(),
        chosen=select(settings.config.accelerator).name,
        binding=binding,
    )


def _lines(description: _Description) -> Iterator[str]:
    config = description.config
    yield f"model {config.model}: {config.folder}"
    yield from (f"  note: {note}" for note in config.notes)
    yield from _architecture_lines(config.architecture)
    yield ""
    yield from _cache_lines(description)
    yield ""
    yield from _backend_lines(description)
    yield ""
    yield from columns([("setting", "value", "from"), *_setting_rows(description.settings)])
    if description.binding is not None:
        yield ""
        yield description.binding.table()


def setting_values(settings: Resolved) -> dict[str, dict[str, Any]]:
    """Every setting by name, as its plain value and where that came from."""
    values = {field.name: getattr(settings.config, field.name) for field in fields(settings.config)}
    return {name: {"value": _plain(value), "source": settings.sources[name]} for name, value in values.items()}


def _plain(value: Any) -> Any:
    """A setting as JSON can hold it."""
    if isinstance(value, SpeculativeConfig):
        return asdict(value)
    return value.value if isinstance(value, Enum) else value


def _setting_rows(settings: Resolved) -> Iterator[tuple[str, str, str]]:
    for name, setting in setting_values(settings).items():
        yield name, _shown(setting["value"]), setting["source"]


def _shown(value: Any) -> str:
    """A plain value on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return '""' if value == "" else str(value)


def _architecture_lines(model: ModelArchitecture) -> Iterator[str]:
    """The shape of the model, one part a line."""
    attention, indexer, experts = model.attention, model.indexer, model.experts
    ratios = Counter(model.compress_ratios)
    kinds = ", ".join(f"{ratios[ratio]} of ratio {ratio}" for ratio in sorted(ratios))
    yield f"  layers: {model.num_layers} ({kinds}), encoder until {model.num_encoder_layers}"
    num_streams = model.hyper_connection.num_streams
    yield f"  width: hidden {model.hidden_size}, {num_streams} streams, vocabulary {model.vocab_size}"
    yield f"  longest sequence: {model.max_position_embeddings} tokens"
    yield f"  attention: {attention.num_heads} heads of {attention.head_dim}, window {attention.sliding_window}"
    yield f"  entries made by layers: {_listed(model.kv_source_layers)}"
    yield (
        f"  selection: {indexer.top_k} entries by {indexer.num_heads} heads of {indexer.head_dim}, in layers "
        f"{_listed(model.index_source_layers)}"
    )
    yield (
        f"  experts: {experts.num_experts} of width {experts.inner_size}, {experts.experts_per_token} per token, "
        f"{experts.num_shared} shared"
    )
    if (engram := model.engram) is not None:
        yield f"  engram: layers {_listed(engram.layer_ids)}, n-grams to {engram.max_ngram}, rows of {engram.head_dim}"
    if (draft := model.draft) is not None:
        yield f"  draft: {draft.num_layers} layers of {draft.experts.num_experts} experts, blocks of {draft.block_size}"


def _cache_lines(description: _Description) -> Iterator[str]:
    layout = description.layout
    longest = _longest(description)
    whole = layout.blocks_for(longest) * layout.bytes_per_block + layout.bytes_per_slot
    yield (
        f"caches: {layout.bytes_per_token:,.0f} bytes for a token, {size(layout.bytes_per_slot)} for a sequence; "
        f"{size(whole)} for a sequence of {longest:,} tokens"
    )
    rows = [("  in", "kind", "layers", "format", "rows", "bytes of a layer")]
    for place, sections in (("a block", layout.block_sections), ("a slot", layout.slot_sections)):
        kinds: dict[tuple[str, str, int, int], list[int]] = {}
        for section in sections:
            kinds.setdefault((section.kind, section.format, section.rows, section.size_bytes), []).append(section.layer)
        for (kind, form, num_rows, num_bytes), layers in kinds.items():
            rows.append((f"  {place}", kind, _listed(layers), form or "wide", str(num_rows), f"{num_bytes:,}"))
    yield from columns(rows, right=(4, 5))


def _longest(description: _Description) -> int:
    of_model = description.config.architecture.max_position_embeddings
    return min(description.settings.config.max_model_len or of_model, of_model)


def _backend_lines(description: _Description) -> Iterator[str]:
    """Which backend serves, and why not the others."""
    accelerator = description.settings.config.accelerator
    why = ", the usable one with the highest priority" if accelerator == AUTO else ""
    yield f"accelerator {accelerator}: backend {description.chosen}{why}"
    rows = [
        (f"  {state.name}", "chosen" if state.name == description.chosen else state.state, state.reason)
        for state in description.backends
    ]
    yield from columns(rows)


def _listed(layers: Sequence[int]) -> str:
    """Layer numbers, runs of three and more as ``first-last``."""
    words: list[str] = []
    start = 0
    while start < len(layers):
        end = start
        while end + 1 < len(layers) and layers[end + 1] == layers[end] + 1:
            end += 1
        run = layers[start : end + 1]
        words += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(layer) for layer in run]
        start = end + 1
    return ", ".join(words)


def _as_json(description: _Description) -> dict[str, Any]:
    settings, config, layout = description.settings, description.config, description.layout
    return {
        "model": config.model,
        "folder": str(config.folder),
        "notes": list(config.notes),
        "settings": setting_values(settings),
        "architecture": asdict(config.architecture),
        "caches": {
            "bytes_per_token": layout.bytes_per_token,
            "bytes_per_block": layout.bytes_per_block,
            "block_tokens": layout.block_tokens,
            "bytes_per_slot": layout.bytes_per_slot,
            "block_sections": [asdict(section) for section in layout.block_sections],
            "slot_sections": [asdict(section) for section in layout.slot_sections],
        },
        "longest_sequence": _longest(description),
        "accelerator": {"backend": description.chosen, "backends": [asdict(state) for state in description.backends]},
        "binding": description.binding.as_json() if description.binding is not None else None,
    }
