"""The n-gram ops against plain-Python readings of spec model/06, token by token."""

from __future__ import annotations

import math
from itertools import chain

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.hash_rows import hash_rows
from deepinfer_core.ops.engram.lookup import lookup
from deepinfer_core.ops.engram.ngram_context import ngram_context
from deepinfer_core.ops.quantize.rounding import dequantize_values
from deepinfer_core.tensor import QuantTensor

PAD = 2


def contexts_of(sequence: list[int], length: int) -> list[list[int]]:
    """Section 3 of the specification, word for word, for every position of a sequence."""
    contexts: list[list[int]] = []
    for position in range(len(sequence)):
        blocked, context = False, []
        for back in range(length):
            value = PAD if position < back or blocked else sequence[position - back]
            if value == -1:
                blocked, value = True, PAD
            context.append(value)
        contexts.append(context)
    return contexts


def step_context(sequences: list[list[int]], parts: list[tuple[int, int]], length: int, padding: int = 0) -> Tensor:
    """Contexts of a step that runs tokens ``first .. end - 1`` of every sequence and some padding rows."""
    ids = [i for sequence, (first, end) in zip(sequences, parts, strict=True) for i in sequence[first:end]]
    positions = list(chain.from_iterable(range(*part) for part in parts))
    rows = [number for number, (first, end) in enumerate(parts) for _ in range(first, end)]
    history = [
        [s[p] if p >= 0 else -1 for p in range(first - 1, first - length, -1)]
        for s, (first, _) in zip(sequences, parts, strict=True)
    ]
    filled = [
        torch.tensor(values + [filler] * padding, dtype=torch.int32)
        for values, filler in ((ids, -1), (positions, 0), (rows, -1))
    ]
    return ngram_context(*filled, torch.tensor(history, dtype=torch.int32), max_ngram=length, pad_id=PAD)


@pytest.mark.parametrize("length", [2, 3, 4, 6])
def test_contexts_of_a_mixed_step_follow_the_specification(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    sequences = [torch.randint(-1, 9, (n,), generator=generator).tolist() for n in (1, 2, 7, 30, 12)]
    parts = [(0, 1), (1, 2), (3, 7), (0, 30), (11, 12)]

    found = step_context(sequences, parts, length)

    expected = [
        contexts_of(sequence, length)[first:end] for sequence, (first, end) in zip(sequences, parts, strict=True)
    ]
    assert found.tolist() == list(chain.from_iterable(expected))


def test_draft_rows_see_the_drafts_before_them() -> None:
    assert step_context([[5, 6, 7, 8, 9]], [(2, 5)], 4).tolist() == [[7, 6, 5, PAD], [8, 7, 6, 5], [9, 8, 7, 6]]


def test_an_image_hides_itself_and_everything_older_across_steps() -> None:
    assert step_context([[5, -1, 7, 8]], [(2, 4)], 4).tolist() == [[7, PAD, PAD, PAD], [8, 7, PAD, PAD]]
    assert step_context([[5, -1, 7]], [(1, 2)], 4).tolist() == [[PAD] * 4]


def test_padding_rows_change_nothing_and_have_empty_contexts() -> None:
    sequences, parts = [[5, 6, 7], [8, 9]], [(1, 3), (1, 2)]

    padded = step_context(sequences, parts, 4, padding=3)

    assert padded[:3].tolist() == step_context(sequences, parts, 4).tolist()
    assert padded[3:].tolist() == [[PAD] * 4] * 3


def test_hashes_follow_the_specification() -> None:
    context, multipliers = [7, 3, 200, 1], [29662608052400909, 1873410163432121, 13919202536988139, 28638879857136817]
    primes, offsets = [257, 263, 269, 271, 277, 281], [0, 257, 520, 789, 1060, 1337]

    found = hash_rows(
        *(torch.tensor(v, dtype=d) for v, d in (([context], torch.int32), ([7], torch.int32))),
        *map(torch.tensor, (multipliers, primes, offsets)),
    )

    mixed, expected = context[0] * multipliers[0], []
    for place in range(1, 4):
        mixed ^= context[place] * multipliers[place]
        expected += [mixed % primes[c] + offsets[c] for c in (2 * place - 2, 2 * place - 1)]
    assert found.tolist() == [expected]


def test_a_token_without_an_id_has_no_rows() -> None:
    constants = (torch.tensor([3, 5]), torch.tensor([7, 11]), torch.tensor([0, 7]))

    rows = hash_rows(
        torch.tensor([[PAD, PAD], [4, 1]], dtype=torch.int32), torch.tensor([-1, 4], dtype=torch.int32), *constants
    )

    assert rows[0].tolist() == [-1, -1]
    assert min(rows[1].tolist()) >= 0


def test_lookup_concatenates_rows_in_column_order_and_gives_zeros_for_none() -> None:
    values = torch.arange(1, 5).float()[:, None].expand(4, 32).to(torch.float8_e4m3fn)
    table = QuantTensor(values.contiguous(), torch.tensor([[127], [128], [126], [127]], dtype=torch.uint8), "mxfp8")

    found = dequantize_values(lookup(torch.tensor([[1, 0], [3, -1]], dtype=torch.int32), table), torch.float32)

    assert found[:, ::32].tolist() == [[4.0, 1.0], [4.0, 0.0]]
    assert found.shape == (2, 64)


def gated(x: list[float], key: list[float], value: list[float], weight: list[float], eps: float) -> list[float]:
    """Section 5 of the specification for one stream of one token, in double precision."""
    hidden = len(x)
    rx, rk = (1 / math.sqrt(sum(v * v for v in part) / hidden + eps) for part in (x, key))
    d = sum(a * w * k for a, w, k in zip(x, weight, key, strict=True)) * rx * rk / math.sqrt(hidden)
    g = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(d), 1e-6)), d)))
    return [a + g * v for a, v in zip(x, value, strict=True)]


def test_the_gate_follows_the_specification() -> None:
    generator = torch.Generator().manual_seed(0)
    streams, memory = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2, 8), (3, 3, 8)))
    query, key = (torch.randn(2, 8, generator=generator) for _ in range(2))
    weight = query.double() * key.double()

    found = gate(streams, memory.flatten(1), query, key, eps=1e-6)

    for t in range(3):
        for s in range(2):
            expected = gated(*(v.tolist() for v in (streams[t, s], memory[t, s], memory[t, 2], weight[s])), eps=1e-6)
            assert found[t, s].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("last", "inside"), [(1.0, 1e-3), (1.0 - 1e-9, 1e-3), (1.0 + 1e-9, -1e-3)])
def test_an_agreement_near_zero_counts_as_a_millionth_with_its_sign(last: float, inside: float) -> None:
    streams = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    memory = torch.tensor([[1.0, last, 1.0, 1.0]], dtype=torch.float64)

    found = gate(streams, memory, torch.ones(1, 2), torch.ones(1, 2), eps=1e-20)

    assert (found - streams).flatten().tolist() == pytest.approx([1 / (1 + math.exp(-inside))] * 2, rel=1e-12)


def test_a_token_without_rows_keeps_its_streams() -> None:
    streams = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(1)).bfloat16()

    found = gate(streams, torch.zeros(2, 160, dtype=torch.bfloat16), torch.ones(4, 32), torch.ones(4, 32), eps=1e-20)

    assert torch.equal(found, streams)
