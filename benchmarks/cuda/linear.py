"""Measurements of ``linear`` and ``embedding`` at the released sizes: products with FP8 weights, head, embedding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from measure import Measurement, Work
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.ops.embedding import run_token_embedding, run_vocabulary_logits
from deepinfer_cuda.ops.linear import run_grouped_linear
from deepinfer_cuda.ops.linear_weight import pack_fp8

ROWS = (1, 16, 64, 256, 4096, 16384)
VOCABULARY, HIDDEN = 129280, 5120
_ROTATED_BYTES = 256 << 20
"""Weights that are timed in turn hold at least this much, several times L2."""
_SHARE = {1: 0.7, 16: 0.7, 64: 0.7, 256: 0.0, 4096: 0.6, 16384: 0.6}
_CHECKED_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A linear map with an FP8 weight: ``groups`` times ``out`` channels of ``width``."""

    name: str
    out: int
    width: int
    groups: int = 1

    @property
    def weights(self) -> int:
        """Numbers of the weight."""
        return self.groups * self.out * self.width

    @property
    def copies(self) -> int:
        """Weights that are timed in turn."""
        return max(math.ceil(_ROTATED_BYTES / self.weights), 1)


PROJECTIONS = (
    Projection(name="query_a_kv", out=1792, width=5120),
    Projection(name="query_b", out=32768, width=1280),
    Projection(name="query_b_index", out=36864, width=1280),
    Projection(name="output_a", out=1024, width=4096, groups=8),
    Projection(name="output_b", out=5120, width=8192),
)


def random_weight(projection: Projection) -> QuantTensor:
    """Every e4m3 number but NaN, scales of 2^-10 to 2^-6."""
    rows = projection.groups * projection.out
    data = torch.randn(rows, projection.width, device="cuda").mul_(100).clamp_(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.randint(117, 122, (rows // 32, projection.width // 32), dtype=torch.uint8, device="cuda")
    return QuantTensor(data, scale, "fp8_block32")


def random_rows(rows: int, width: int) -> QuantTensor:
    """MXFP8 rows of normal numbers."""
    return quantize_rows(torch.randn(rows, width, device="cuda", dtype=torch.bfloat16), FORMATS["mxfp8"])


def measurements() -> Iterator[Measurement]:
    """Every projection for 1 to 16384 rows, the head, the embedding."""
    for projection in PROJECTIONS:
        for rows in ROWS:
            yield Measurement(
                group="fp8_linear",
                name=projection.name,
                shape=f"M={rows} N={projection.groups}x{projection.out} K={projection.width}",
                bytes=projection.weights * (1 + 1 / 1024)
                + rows * projection.groups * (projection.width * (1 + 1 / 32) + projection.out * 2),
                flop=2 * rows * projection.weights,
                make=partial(_works, projection, rows),
                peer=partial(_peer, projection, rows),
                target=_SHARE[rows],
                check=partial(_error, projection, rows),
                tolerance=3e-3,
            )
    yield from _head_measurements()


def _works(projection: Projection, rows: int) -> list[Work]:
    weights = [pack_fp8(random_weight(projection), projection.groups) for _ in range(projection.copies)]
    x = random_rows(rows, projection.groups * projection.width)
    return [partial(_run, projection, x, weight) for weight in weights]


def _run(projection: Projection, x: QuantTensor, weight: Packed) -> Tensor:
    return run_grouped_linear(x, weight, groups=projection.groups, out="bf16")


def _peer(projection: Projection, rows: int) -> list[Work]:
    """The same by cuBLAS on bf16 rows and weights."""
    shape = (projection.groups, projection.out, projection.width)
    weights = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(projection.copies)]
    x = torch.randn(rows, projection.groups, projection.width, device="cuda", dtype=torch.bfloat16)
    if projection.groups == 1:
        return [partial(torch.mm, x[:, 0], weight[0].T) for weight in weights]
    return [partial(torch.bmm, x.transpose(0, 1), weight.transpose(1, 2)) for weight in weights]


def _error(projection: Projection, rows: int) -> float:
    """Relative error of some rows against float64; 1 more if a row depends on its company."""
    weight, x = random_weight(projection), random_rows(rows, projection.groups * projection.width)
    packed = pack_fp8(weight, projection.groups)
    result = _run(projection, x, packed)
    chosen = _some_rows(rows)
    maps = dequantize_values(weight, torch.float64).unflatten(0, (projection.groups, projection.out))
    values = dequantize_values(x[chosen], torch.float64).unflatten(1, (projection.groups, projection.width))
    expected = torch.einsum("tgi,goi->tgo", values, maps).flatten(1)
    alone = torch.cat([_run(projection, x[row : row + 1], packed) for row in chosen.tolist()])
    return _relative(result[chosen], expected) + (0.0 if torch.equal(alone, result[chosen]) else 1.0)


def _some_rows(rows: int) -> Tensor:
    """First and last rows."""
    first = torch.arange(min(rows, _CHECKED_ROWS), device="cuda")
    return torch.cat((first, torch.arange(max(rows - _CHECKED_ROWS, len(first)), rows, device="cuda")))


def _relative(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


def _head_measurements() -> Iterator[Measurement]:
    for rows in (1, 16, 64, 256, 4096):
        yield Measurement(
            group="head",
            name="vocabulary_logits",
            shape=f"M={rows} N={VOCABULARY} K={HIDDEN}",
            bytes=VOCABULARY * HIDDEN * 2 + rows * (HIDDEN * 2 + VOCABULARY * 4),
            flop=2 * rows * VOCABULARY * HIDDEN,
            make=partial(_head_works, rows, run_vocabulary_logits),
            peer=partial(_head_works, rows, _mm_to_float),
            target=_SHARE[rows],
            check=partial(_head_error, rows),
            tolerance=1e-5,
        )
    for rows in (1, 256, 8192):
        yield Measurement(
            group="head",
            name="token_embedding",
            shape=f"T={rows} H={HIDDEN}",
            bytes=rows * HIDDEN * 4,
            flop=0,
            make=partial(_embedding_works, rows),
            peer=partial(_embedding_peer, rows),
            target=0.7,
        )


def _head_works(rows: int, run: Callable[[Tensor, Tensor], Tensor]) -> list[Work]:
    head = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    return [partial(run, x, head)]


def _mm_to_float(x: Tensor, head: Tensor) -> Tensor:
    return torch.mm(x, head.T, out_dtype=torch.float32)


def _head_error(rows: int) -> float:
    head = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    result = run_vocabulary_logits(x, head)
    chosen = _some_rows(rows)
    alone = torch.cat([run_vocabulary_logits(x[row : row + 1], head) for row in chosen.tolist()])
    expected = torch.cat([x[chosen].double() @ part.double().T for part in head.split(16384)], 1)
    return _relative(result[chosen], expected) + (0.0 if torch.equal(alone, result[chosen]) else 1.0)


def _embedding_works(rows: int) -> list[Work]:
    table, ids = _table_and_ids(rows)
    return [partial(run_token_embedding, ids, table, out="bf16")]


def _embedding_peer(rows: int) -> list[Work]:
    table, ids = _table_and_ids(rows)
    return [partial(torch.nn.functional.embedding, ids, table)]


def _table_and_ids(rows: int) -> tuple[Tensor, Tensor]:
    table = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16)
    return table, torch.randint(0, VOCABULARY, (rows,), device="cuda", dtype=torch.int32)
