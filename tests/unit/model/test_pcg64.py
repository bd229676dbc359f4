"""The random stream that defines the n-gram hash, against numbers that NumPy 2.4 drew."""

from __future__ import annotations

import pytest

from deepinfer_core.errors import InternalError
from deepinfer_core.model.pcg64 import uniform_integers


@pytest.mark.parametrize(
    ("seed", "bound", "numbers"),
    [
        (10007, 2**62 + 12345, (3796813830707326784, 3665776621713522469, 1979716633701284049)),
        (0, 2**32 + 1, (2735729616, 1158725112, 175979945)),
        (2**32 - 1, 2**63 - 1, (2323769260371640015, 2020525339703518208, 2649733857077390922)),
    ],
)
def test_numbers_are_those_of_numpy(seed: int, bound: int, numbers: tuple[int, ...]) -> None:
    assert uniform_integers(seed, bound, 3) == numbers


def test_numbers_stay_below_the_bound_where_many_words_are_thrown_away() -> None:
    bound = 3 * 2**61 + 1

    numbers = uniform_integers(5, bound, 500)

    assert len(set(numbers)) == 500
    assert 0 <= min(numbers) < bound // 100
    assert bound - bound // 100 < max(numbers) < bound


@pytest.mark.parametrize(("seed", "bound"), [(2**32, 2**40), (-1, 2**40), (1, 2**32), (1, 2**63 + 1)])
def test_what_numpy_draws_by_another_method_is_not_imitated(seed: int, bound: int) -> None:
    with pytest.raises(InternalError, match="out of range"):
        uniform_integers(seed, bound, 1)
