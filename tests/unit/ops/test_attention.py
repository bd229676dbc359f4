"""The core of sparse attention against its definition (spec attention/01 sections 6 and 7)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.attention.attend import attend
from deepinfer_core.ops.attention.metadata import entry_metadata, window_slots
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.cases import Draw
from deepinfer_core.ops.kv_cache.store import draw_cache, load

ROWS, HEADS, WIDTH, KEYS, SCALE = 7, 4, 64, 20, 64**-0.5
WIDE: dict[str, Any] = {"scale": SCALE, "round_probabilities": False}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERY, KEY, SINK = normal(ROWS, HEADS, WIDTH, seed=1), normal(ROWS, KEYS, WIDTH, seed=2), normal(HEADS, seed=3)
VALID = torch.rand(ROWS, KEYS, generator=torch.Generator().manual_seed(4)) < 0.7


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_sink_is_a_key_whose_value_is_zero() -> None:
    """The definition, head by head: softmax over the valid keys and the sink; keys are values."""
    found = attend(QUERY, KEY, VALID, SINK, **WIDE)

    for row in range(ROWS):
        keys = KEY[row, VALID[row]]
        for head in range(HEADS):
            logits = torch.cat((keys @ QUERY[row, head] * SCALE, SINK[head : head + 1]))
            close(found[row, head], torch.softmax(logits, 0)[:-1] @ keys)


def test_a_sink_of_minus_infinity_is_none_and_an_endless_one_takes_everything() -> None:
    logits = (QUERY @ KEY.transpose(1, 2)) * SCALE
    plain = torch.softmax(torch.where(VALID[:, None], logits, -torch.inf), -1) @ KEY

    close(attend(QUERY, KEY, VALID, torch.full((HEADS,), -torch.inf), **WIDE), plain)
    assert attend(QUERY, KEY, VALID, torch.full((HEADS,), 1e4), **WIDE).abs().max() == 0


def test_the_sink_scales_the_output_by_its_share() -> None:
    total = torch.where(VALID[:, None], (QUERY @ KEY.transpose(1, 2)) * SCALE, -torch.inf).exp().sum(-1, keepdim=True)
    without = attend(QUERY, KEY, VALID, torch.full((HEADS,), -torch.inf), **WIDE)

    found = attend(QUERY, KEY, VALID, SINK, **WIDE)

    close(found * (total + SINK.exp()[:, None]) / total, without)


def test_the_order_of_keys_does_not_matter() -> None:
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(5))

    found = attend(QUERY, KEY[:, order], VALID[:, order], SINK, **WIDE)

    close(found, attend(QUERY, KEY, VALID, SINK, **WIDE))


@pytest.mark.parametrize("round_probabilities", [True, False])
def test_invalid_keys_change_nothing_even_if_they_are_not_numbers(round_probabilities: bool) -> None:
    settings = {"scale": SCALE, "round_probabilities": round_probabilities}
    more = torch.cat((KEY, torch.full((ROWS, 5, WIDTH), torch.nan, dtype=torch.float64)), 1)
    valid = torch.cat((VALID, torch.zeros(ROWS, 5, dtype=torch.bool)), 1)

    close(attend(QUERY, more, valid, SINK, **settings), attend(QUERY, KEY, VALID, SINK, **settings))


def test_a_row_without_any_key_gives_zeros() -> None:
    found = attend(QUERY, KEY * torch.nan, torch.zeros_like(VALID), SINK, **WIDE)

    assert found.eq(0).all()


def test_rounded_probabilities_weigh_values_but_not_the_denominator() -> None:
    logits = (QUERY[0, 0] @ KEY[0].T) * SCALE
    weight = (logits - logits.max()).exp()
    total = weight.sum() + (SINK[0] - logits.max()).exp()

    found = attend(QUERY, KEY, torch.ones_like(VALID), SINK, scale=SCALE, round_probabilities=True)

    close(found[0, 0], weight.bfloat16().double() @ KEY[0] / total)


def cached_keys(context_format: str) -> dict[str, Any]:
    """A window ring, entries, and slots of both for every row, valid ones first and ascending."""
    draw = Draw("attention", {"M": 3, "P": 30, "D": WIDTH}, "f64")
    window, context = draw_cache(draw, "mxfp8"), draw_cache(draw, context_format)
    window_places, context_places = (torch.full((ROWS, n), -1, dtype=torch.int32) for n in (16, 8))
    for row in range(ROWS):
        for places, count in ((window_places, 2 * row + 1), (context_places, row)):
            places[row, :count] = draw.distinct(60, count).sort().values + 30
    return {"window": window, "context": context, "window_slots": window_places, "context_slots": context_places}


@pytest.mark.parametrize("context_format", ["fp4_e4m3", "mxfp8"])
def test_prompt_rows_and_decode_rows_of_the_same_keys_agree(context_format: str) -> None:
    made = cached_keys(context_format)
    rows = {name: load(torch.arange(90, dtype=torch.int32), made[name], out="f64") for name in ("window", "context")}

    decoded = sparse_decode(
        QUERY,
        made["window"],
        made["window_slots"],
        SINK.float(),
        made["context"],
        made["context_slots"],
        out="f64",
        **WIDE,
    )
    prompt = sparse_prefill(
        QUERY,
        rows["window"],
        made["window_slots"],
        SINK.float(),
        rows["context"],
        made["context_slots"],
        out="f64",
        **WIDE,
    )

    close(decoded, prompt)
    keys = [
        torch.cat([rows[n][made[f"{n}_slots"][r][made[f"{n}_slots"][r] >= 0].long()] for n in rows])
        for r in range(ROWS)
    ]
    for row in range(ROWS):
        alone = attend(QUERY[row : row + 1], keys[row][None], torch.ones(1, len(keys[row])) > 0, SINK.float(), **WIDE)
        close(decoded[row : row + 1], alone)


def test_more_empty_slots_change_nothing() -> None:
    made = cached_keys("fp4_e4m3")
    wider = {name: torch.nn.functional.pad(made[name], (0, 3), value=-1) for name in ("window_slots", "context_slots")}

    expected = sparse_decode(query=QUERY, sink=SINK.float(), out="f64", **made, **WIDE)

    close(sparse_decode(query=QUERY, sink=SINK.float(), out="f64", **{**made, **wider}, **WIDE), expected)


@pytest.mark.parametrize("position", [0, 1, 126, 127, 128, 129, 133, 134, 1000])
def test_the_released_window_is_the_row_itself_and_the_127_before_it(position: int) -> None:
    at = torch.tensor([position], dtype=torch.int32)

    slots, store = window_slots(at, torch.zeros_like(at), torch.tensor([3], dtype=torch.int32), window=128, ring=134)

    positions = range(max(0, position - 127), position + 1)
    assert slots[0].tolist() == [3 * 134 + p % 134 for p in positions] + [-1] * (128 - len(positions))
    assert store.tolist() == [3 * 134 + position % 134]


@pytest.mark.parametrize("ratio", [1, 2])
def test_a_row_sees_the_entries_whose_groups_are_complete(ratio: int) -> None:
    """At ratio 2 a row at an even position does not see the pair that it opens; at ratio 1 it sees its own entry."""
    positions, per_block = torch.arange(9, dtype=torch.int32), 8 // ratio
    table = torch.tensor([[5, 2]], dtype=torch.int32)

    visible, slots, at = entry_metadata(
        positions, torch.zeros_like(positions), table, ratio=ratio, rows_per_block=per_block
    )

    for p in range(9):
        complete = [j for j in range(9) if ratio * j + ratio - 1 <= p]
        assert visible[p] == len(complete)
        closed, closes = p // ratio, (p + 1) % ratio == 0
        assert slots[p] == ((5, 2)[closed // per_block] * per_block + closed % per_block if closes else -1)
        assert at[p] == (ratio * closed if closes else 0)
