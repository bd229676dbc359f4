"""Constants of the n-gram hash against the vectors of spec model/06 and model/11."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from deepinfer_core.config.architecture import EngramArchitecture
from deepinfer_core.model.engram_tables import EngramTables, engram_tables
from deepinfer_core.ops.engram.hash_rows import hash_rows


def released() -> EngramArchitecture:
    return EngramArchitecture(
        layer_ids=(1, 14),
        max_ngram=4,
        heads_per_ngram=8,
        head_dim=256,
        prime_start=16_000_000,
        pad_token_id=2,
        compressed_vocab_size=99092,
    )


def small() -> EngramArchitecture:
    return EngramArchitecture(
        layer_ids=(1, 2),
        max_ngram=4,
        heads_per_ngram=2,
        head_dim=32,
        prime_start=256,
        pad_token_id=2,
        compressed_vocab_size=256,
    )


def rows(tables: EngramTables, layer: int, context: tuple[int, ...]) -> list[int]:
    constants = (tables.multipliers[layer], tables.primes[layer], tables.offsets[layer])
    ids = torch.tensor([context], dtype=torch.int32)
    return hash_rows(ids, ids[:, 0], *(torch.tensor(c, dtype=torch.int64) for c in constants))[0].tolist()


def test_released_tables_have_the_released_number_of_rows() -> None:
    assert engram_tables(released()).num_rows == (384006168, 384016682)


def test_released_multipliers() -> None:
    assert engram_tables(released()).multipliers == (
        (76632096046245, 4839876093313, 35959672319349, 73987337458391),
        (67716810739261, 51510806800915, 30921347202721, 82619226485591),
    )


def test_released_columns_begin_with_the_next_unused_primes() -> None:
    primes = engram_tables(released()).primes

    assert primes[0][:3] == (16000057, 16000079, 16000081)
    assert primes[1][0] == 16000477
    assert primes[1][-1] == 16000889


ROWS_OF_LAYER_1 = [
    703533, 21299874, 37721205, 57111750, 78265703, 80001823, 96873420, 123958603, 131362657, 145728619,
    166138742, 191171279, 206818304, 212618326, 228789151, 252897891, 261155482, 286881886, 296340229,
    310563801, 331266527, 347150331, 364210749, 374926347,
]  # fmt: skip
ROWS_OF_LAYER_14 = [
    2999211, 20261677, 47393667, 54824861, 74544025, 92442579, 110286101, 119269782, 141088252, 156524155,
    173169512, 190609781, 198645571, 215828227, 229591799, 249604399, 269895446, 287700973, 299766916,
    304079520, 321885675, 336583440, 362305262, 380335539,
]  # fmt: skip


@pytest.mark.parametrize(("layer", "expected"), [(0, ROWS_OF_LAYER_1), (1, ROWS_OF_LAYER_14)])
def test_released_rows(layer: int, expected: list[int]) -> None:
    assert rows(engram_tables(released()), layer, (237, 5, 99000, 2)) == expected


def test_released_rows_of_an_empty_context() -> None:
    assert rows(engram_tables(released()), 0, (2, 2, 2, 2))[:3] == [4299726, 29253038, 43157972]


def test_small_tables() -> None:
    tables = engram_tables(small())

    assert tables.layer_ids == (1, 2)
    assert tables.num_rows == (1618, 1824)
    assert tables.primes == ((257, 263, 269, 271, 277, 281), (283, 293, 307, 311, 313, 317))
    assert tables.offsets[0] == (0, 257, 520, 789, 1060, 1337)
    assert tables.multipliers == (
        (29662608052400909, 1873410163432121, 13919202536988139, 28638879857136817),
        (29614367931768699, 14359748903426231, 8766307535087495, 27646881644150121),
    )


def test_small_rows() -> None:
    tables = engram_tables(small())

    assert rows(tables, 0, (7, 3, 200, 1)) == [108, 350, 757, 825, 1225, 1547]
    assert rows(tables, 1, (7, 3, 200, 1)) == [21, 532, 789, 1003, 1388, 1563]


def test_primes_ascend_over_all_layers_without_reuse() -> None:
    primes = [p for layer in engram_tables(small()).primes for p in layer]

    assert all(a < b for a, b in pairwise(primes))
