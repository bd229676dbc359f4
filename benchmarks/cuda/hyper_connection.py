"""Residual streams at the released sizes: 4 streams of 5120 channels, 1, 256 and 8192 rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from measure import Measurement, Work
from torch import Tensor

from deepinfer_cuda.ops.hyper_connection import run_collapse, run_enter, run_expand, run_update

STREAMS, WIDTH = 4, 5120
OUTPUTS = STREAMS * (STREAMS + 2)
SETTINGS: dict[str, Any] = {"norm_eps": 1e-20, "eps": 1e-6, "iterations": 20}
ROTATED_BYTES = 200 << 20
"""Several times the L2 cache."""
MIX_BYTES = 4 * (OUTPUTS + STREAMS)


def measurements() -> Iterator[Measurement]:
    """All of this family."""
    for rows in (1, 256, 8192):
        yield _enter(rows)
        yield _update(rows)
    yield _simple("collapse", 8192, (STREAMS + 1) * WIDTH * 2, lambda i: run_collapse(i["streams"], i["mix"]))
    yield _simple("expand", 8192, (STREAMS + 1) * WIDTH * 2, lambda i: run_expand(i["output"], num_streams=STREAMS))


def _enter(rows: int) -> Measurement:
    def run(i: dict[str, Tensor]) -> Any:
        arguments = (i[name] for name in ("streams", "mix", "function", "base", "scale", "norm_weight"))
        return run_enter(*arguments, **SETTINGS)

    def peer(i: dict[str, Tensor]) -> Any:
        """The projection, the collapse and the norm by torch in bfloat16; without Sinkhorn's iteration."""
        products = i["streams"].flatten(1) @ i["short_function"].T
        collapsed = torch.bmm(i["mix"].to(torch.bfloat16).unsqueeze(1), i["streams"]).squeeze(1)
        return products, torch.nn.functional.rms_norm(collapsed, (WIDTH,), i["norm_weight"], 1e-20)

    return Measurement(
        group="hyper_connection",
        name="enter",
        shape=f"rows={rows}",
        bytes=rows * ((STREAMS + 1) * WIDTH * 2 + MIX_BYTES) + OUTPUTS * STREAMS * WIDTH * 4,
        flop=2 * rows * STREAMS * WIDTH * OUTPUTS,
        make=_works(rows, run),
        peer=_works(rows, peer),
        target=0.6 if rows == 8192 else 0.0,
        check=lambda: _check_enter(min(rows, 300)),
        tolerance=1.0,
    )


def _update(rows: int) -> Measurement:
    def run(i: dict[str, Tensor]) -> Any:
        return run_update(i["output"], i["streams"], i["post"], i["combination"])

    def peer(i: dict[str, Tensor]) -> Any:
        mixed = torch.bmm(i["combination"].to(torch.bfloat16).transpose(1, 2), i["streams"])
        return torch.addcmul(mixed, i["post"].to(torch.bfloat16).unsqueeze(-1), i["output"].unsqueeze(1))

    return Measurement(
        group="hyper_connection",
        name="update",
        shape=f"rows={rows}",
        bytes=rows * ((2 * STREAMS + 1) * WIDTH * 2 + MIX_BYTES),
        flop=0,
        make=_works(rows, run),
        peer=_works(rows, peer),
        target=0.6 if rows == 8192 else 0.0,
        check=lambda: _check_update(min(rows, 300)),
        tolerance=1.0,
    )


def _simple(name: str, rows: int, row_bytes: int, run: Callable[[dict[str, Tensor]], Any]) -> Measurement:
    return Measurement(
        group="hyper_connection",
        name=name,
        shape=f"rows={rows}",
        bytes=rows * row_bytes,
        flop=0,
        make=_works(rows, run),
        target=0.6,
    )


def _works(rows: int, run: Callable[[dict[str, Tensor]], Any]) -> Callable[[], list[Work]]:
    """Builds one work for each of several sets of inputs."""

    def make() -> list[Work]:
        count = max(1, min(64, ROTATED_BYTES // (rows * STREAMS * WIDTH * 2 + OUTPUTS * STREAMS * WIDTH * 4)))
        return [partial(run, _inputs(rows)) for _ in range(count)]

    return make


def _inputs(rows: int) -> dict[str, Tensor]:
    wide = {"dtype": torch.float32, "device": "cuda"}
    short = {"dtype": torch.bfloat16, "device": "cuda"}
    function = torch.randn(OUTPUTS, STREAMS * WIDTH, **wide) * (STREAMS * WIDTH) ** -0.5
    return {
        "streams": torch.randn(rows, STREAMS, WIDTH, **short),
        "output": torch.randn(rows, WIDTH, **short),
        "mix": torch.rand(rows, STREAMS, **wide),
        "post": torch.rand(rows, STREAMS, **wide),
        "combination": torch.rand(rows, STREAMS, STREAMS, **wide),
        "function": function,
        "short_function": function.to(torch.bfloat16),
        "base": torch.randn(OUTPUTS, **wide),
        "scale": torch.rand(3, **wide),
        "norm_weight": torch.randn(WIDTH, **short),
    }


def _check_enter(rows: int) -> float:
    """Largest error in units of the op's tolerance, against float64."""
    from deepinfer_core.ops.hyper_connection.mixes import mixes

    i = _inputs(rows)
    names = ("streams", "mix", "function", "base", "scale", "norm_weight")
    x, *found = run_enter(*(i[name] for name in names), **SETTINGS)
    streams = i["streams"].double()
    expected = mixes.reference(streams, i["function"], i["base"], i["scale"], **SETTINGS)
    collapsed = (streams * i["mix"].double().unsqueeze(-1)).sum(1).to(torch.bfloat16).double()
    normed = collapsed * (collapsed.square().mean(-1, keepdim=True) + 1e-20).rsqrt() * i["norm_weight"].double()
    worst = _units(x, normed, 2**-6, 1e-2)
    return max(worst, *(_units(a, b, 1e-3, 1e-4) for a, b in zip(found, expected, strict=True)))


def _check_update(rows: int) -> float:
    """Largest error in units of the op's tolerance, against float64."""
    i = _inputs(rows)
    actual = run_update(i["output"], i["streams"], i["post"], i["combination"])
    mixed = torch.einsum("tij,tih->tjh", i["combination"].double(), i["streams"].double())
    expected = i["post"].double().unsqueeze(-1) * i["output"].double().unsqueeze(1) + mixed
    return _units(actual, expected, 2**-7, 1e-3)


def _units(actual: Tensor, expected: Tensor, relative: float, absolute: float) -> float:
    return float(((actual.double() - expected).abs() / (absolute + relative * expected.abs())).max())
