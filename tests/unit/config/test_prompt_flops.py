"""Counted arithmetic: the released model's published sums, brute force on small ranges, and what is saved."""

from __future__ import annotations

import pytest

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.config.prompt_flops import LayerFlops, PromptFlops, prompt_flops
from deepinfer_core.config.prompt_truncation import PromptTruncation
from deepinfer_core.engine.model_config import find_config

LONG = 131072
COMPACT = PromptTruncation(mode="compact")


@pytest.fixture(scope="module")
def released() -> ModelArchitecture:
    return find_config("released").architecture


def tera(number: int) -> float:
    return round(number / 1e12, 1)


def test_the_sums_of_a_long_prompt_are_those_of_the_specification(released: ModelArchitecture) -> None:
    """Section 3 of spec attention/09, whose rows cut the work in other places."""
    flops = prompt_flops(released, LONG)

    assert (tera(flops.encoder.attention), tera(flops.decoder.attention)) == (201.7, 219.5)
    assert (tera(flops.encoder.index_scores), tera(flops.decoder.index_scores)) == (105.6, 136.3)
    assert tera(flops.encoder.projections + flops.encoder.entries) == tera(int((663.8 + 8.4) * 1e12))
    assert tera(flops.decoder.projections + flops.decoder.entries) == pytest.approx(663.8 + 7.1 + 0.7, abs=0.11)


def test_the_decoder_of_a_truncated_prompt_does_hardly_anything(released: ModelArchitecture) -> None:
    off, compact = prompt_flops(released, LONG), prompt_flops(released, LONG, truncation=COMPACT)

    assert compact.encoder == off.encoder
    assert compact.decoder.entries == off.decoder.entries, "entries and index keys are made of every token"
    assert compact.decoder.total < 0.002 * off.decoder.total
    assert round(compact.decoder.attention / 1e12, 2) == 0.21
    assert round(compact.decoder.index_scores / 1e12, 2) == 0.23


@pytest.mark.parametrize(("num_tokens", "share"), [(2048, 0.54), (8192, 0.51), (32768, 0.50), (LONG, 0.50)])
def test_truncation_nearly_halves_the_work(released: ModelArchitecture, num_tokens: int, share: float) -> None:
    """The work left; the encoder alone has the n-gram memory's maps, so a little more than half."""
    off, compact = (prompt_flops(released, num_tokens, truncation=t).total for t in (PromptTruncation(), COMPACT))

    assert round(compact / off, 2) == share


def test_masked_rows_are_computed_all_the_same(released: ModelArchitecture) -> None:
    off = prompt_flops(released, 4096)
    mask = prompt_flops(released, 4096, truncation=PromptTruncation(mode="mask"))

    assert mask.decoder.projections == off.decoder.projections
    assert mask.decoder.attention < off.decoder.attention, "their windows are empty"


def test_keeping_everything_saves_nothing(released: ModelArchitecture) -> None:
    kept = PromptTruncation(mode="compact", keep_tokens=4096)

    assert prompt_flops(released, 4096, truncation=kept) == prompt_flops(released, 4096)


def test_a_hit_costs_what_is_behind_it(released: ModelArchitecture) -> None:
    """Chunks of a prompt add up; a replay costs the rows of one window more, less the keys that it lacks."""
    whole = prompt_flops(released, 8192)
    first = prompt_flops(released, 4096)
    rest = prompt_flops(released, 8192, resume=4096, window_start=0)
    replay = prompt_flops(released, 8192, resume=4096 - 128)

    assert added(first, rest) == (whole.encoder, whole.decoder)
    assert replay.encoder.experts == rest.encoder.experts * (4096 + 128) // 4096
    assert replay.total < 0.53 * whole.total
    hit = prompt_flops(released, LONG, resume=LONG - 1024, truncation=COMPACT)
    assert hit.total < 0.01 * prompt_flops(released, LONG).total


def added(first: PromptFlops, second: PromptFlops) -> tuple[LayerFlops, LayerFlops]:
    return first.encoder + second.encoder, first.decoder + second.decoder


@pytest.mark.parametrize(("resume", "window_start", "num_tokens"), [(0, 0, 700), (100, 50, 900), (258, 256, 1500)])
def test_attention_equals_counting_row_by_row(
    released: ModelArchitecture, resume: int, window_start: int, num_tokens: int
) -> None:
    flops = prompt_flops(released, num_tokens, resume=resume, window_start=window_start)

    window = [min(p - window_start + 1, 128) for p in range(resume, num_tokens)]
    pairs = {r: [min((p + 1) // r, 512) for p in range(resume, num_tokens)] for r in (1, 2)}
    assert flops.encoder.attention == 4 * 64 * 512 * (20 * sum(window) + 18 * sum(pairs[2]))
    assert flops.decoder.attention == 4 * 64 * 512 * 20 * (sum(window) + sum(pairs[1]))
    dense = {r: sum((p + 1) // r for p in range(resume, num_tokens)) for r in (1, 2)}
    candidates = sum(min(-(-(p + 1) // 8), 2048) * 8 for p in range(resume, num_tokens))
    assert flops.encoder.index_scores == 2 * 32 * 128 * 3 * dense[2]
    assert flops.decoder.index_scores == 2 * 32 * 128 * (dense[1] + 4 * candidates)


def test_a_model_without_optional_parts_is_counted(released: ModelArchitecture) -> None:
    from dataclasses import replace

    plain = replace(released, engram=None, draft=None)

    flops = prompt_flops(plain, 4096)

    assert flops.encoder.engram == flops.draft == 0
    assert flops.total < prompt_flops(released, 4096).total
