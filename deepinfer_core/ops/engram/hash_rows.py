"""Table rows of every token: the hash of its n-grams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from deepinfer_core.errors import DtypeError, ShapeError
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Dtypes, Shape, op
from deepinfer_core.ops.tolerance import Tolerance


@op("engram.hash_rows", tolerance=Tolerance.exact(), row_axis="T", weights=("multipliers", "primes", "offsets"))
def hash_rows(
    context: Annotated[Tensor, Shape("T", "L"), Dtypes("i32")],
    compressed_ids: Annotated[Tensor, Shape("T"), Dtypes("i32")],
    multipliers: Annotated[Tensor, Shape("L"), Dtypes("i64")],
    primes: Annotated[Tensor, Shape("U"), Dtypes("i64")],
    offsets: Annotated[Tensor, Shape("U"), Dtypes("i64")],
) -> Tensor:
    """Hash the 2-grams to ``L``-grams that end in each token to rows of one layer's table.

    The result is ``[T, U]`` int32; columns have the n-gram size outside and the hash head inside. Products stay below
    2^63 and are never negative (spec model/06 sections 2 and 4).

    Args:
        context: Result of ``engram.ngram_context``; padding has already taken the place of image tokens.
        compressed_ids: The input of ``engram.ngram_context``. A token with -1 (image, padding of a captured step)
            has no rows: its result is -1 in every column.
        multipliers: Odd factor of each place of the context.
        primes: Size of the part of the table that each column hashes into.
        offsets: First row of each column's part.
    """
    num_heads = len(primes) // (context.shape[1] - 1)
    keys = context.long() * multipliers
    mixed = keys[:, :1]
    columns = []
    for size, prime in enumerate(primes.split(num_heads), start=1):
        mixed = mixed ^ keys[:, size : size + 1]
        columns.append(mixed % prime)
    rows = torch.cat(columns, dim=1) + offsets
    return torch.where(compressed_ids[:, None] < 0, -1, rows).int()


def _tables(draw: Draw) -> dict[str, Any]:
    """Multipliers up to the largest that a vocabulary of ``V`` allows, odd sizes in place of primes."""
    bound = (2**63 - 1) // draw.sizes["V"] // 2
    primes = draw.integers(500_000, 1_000_000, "U", dtype="i64") * 2 + 1
    context = draw.integers(0, draw.sizes["V"], "T", "L")
    return {
        "context": context,
        "compressed_ids": context[:, 0].clone(),
        "multipliers": draw.integers(0, bound, "L", dtype="i64") * 2 + 1,
        "primes": primes,
        "offsets": primes.cumsum(0) - primes,
    }


def _largest(draw: Draw) -> dict[str, Any]:
    """Largest ids and multipliers: an overflow would show."""
    made = _tables(draw)
    made["context"].fill_(draw.sizes["V"] - 1)
    made["multipliers"].fill_(((2**63 - 1) // draw.sizes["V"] // 2 - 1) * 2 + 1)
    return made


def _without_rows(draw: Draw) -> dict[str, Any]:
    """Some tokens are an image's."""
    made = _tables(draw)
    made["compressed_ids"][::2] = -1
    made["context"][::2] = 2
    return made


@hash_rows.cases
def _cases() -> Iterator[Case]:
    yield Case("released_shape", T=7, L=4, U=24, V=99092, make=_tables, required=True, bench=True)
    yield Case("no_rows", T=0, L=4, U=24, V=99092, make=_tables, required=True)
    yield Case("largest_products", T=3, L=4, U=24, V=99092, make=_largest, required=True)
    yield Case("images", T=9, L=4, U=24, V=99092, make=_without_rows, required=True)
    yield Case("one_head", T=5, L=4, U=3, V=256, make=_tables)
    yield Case("bigrams", T=5, L=2, U=2, V=256, make=_tables)
    yield ErrorCase(
        "offset_missing", T=2, L=3, U=4, V=256, make=_tables,
        stretch=("primes", "U"), raises=ShapeError, match="offsets has U=4",
    )  # fmt: skip
    yield ErrorCase(
        "short_multipliers", T=2, L=3, U=4, V=256, make=_tables,
        spoil=lambda a: a.update(multipliers=a["multipliers"].int()), raises=DtypeError, match="i32",
    )  # fmt: skip
