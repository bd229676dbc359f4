"""What kernels share: bf16 bits, and rows split over threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_core.reference.compiled import array, cache_folder, empty, kernel, narrowed, over_rows, tensor, widened


@kernel
def _copy(source: Any, result: Any, first: Any, last: Any) -> None:
    for index in range(first, last):
        result[index] = narrowed(widened(source[index]), result)


def _copied(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result = empty(tuple(numbers.shape), dtype)
    over_rows(_copy, len(numbers), 1, array(numbers), result)
    return tensor(result)


def test_float32_numbers_are_rounded_to_the_nearest_bf16() -> None:
    bits = torch.randint(-(2**31), 2**31, (5000,), generator=torch.Generator().manual_seed(0)).int()
    numbers = torch.cat((bits.view(torch.float32), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])))

    made = _copied(numbers, torch.bfloat16)

    assert torch.equal(made.isnan(), numbers.isnan())
    known = ~numbers.isnan()
    assert torch.equal(made[known].view(torch.int16), numbers.bfloat16()[known].view(torch.int16))


def test_bf16_numbers_come_through_unchanged() -> None:
    numbers = torch.arange(-(2**15), 2**15, 7).short().view(torch.bfloat16)
    known = ~numbers.isnan()

    assert torch.equal(_copied(numbers, torch.float32)[known], numbers.float()[known])
    assert torch.equal(_copied(numbers, torch.bfloat16)[known], numbers[known])


def test_every_row_is_worked_on_once_however_much_work_it_is() -> None:
    counts = np.zeros(1000, np.int64)

    def count(first: int, last: int) -> None:
        counts[first:last] += 1

    for work in (1, 1 << 12, 1 << 20):
        over_rows(count, 1000, work)

    assert counts.tolist() == [3] * 1000


def test_a_failing_thread_is_not_silent() -> None:
    def fail(first: int, last: int) -> None:
        raise ZeroDivisionError(f"{first} {last}")

    for num_rows in (1, 64):
        with pytest.raises(ZeroDivisionError):
            over_rows(fail, num_rows, 1 << 20)


def test_machine_code_is_kept_by_the_contents_of_the_sources() -> None:
    assert cache_folder() == cache_folder()
    assert len(cache_folder().name) == 16
