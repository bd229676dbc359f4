"""Measurements of ``moe``: the expert layer with FP4 weights, its stages, and the router, at the released sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from measure import Measurement, Work
from torch import Tensor

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.moe.experts import expert_layer
from deepinfer_core.ops.moe.select_experts import route
from deepinfer_core.ops.quantize.rounding import quantize_blocks, quantize_rows
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_cuda.ops.expert_packing import ExpertWeights, empty_weights, pack_experts
from deepinfer_cuda.ops.experts import run_expert_layer
from deepinfer_cuda.ops.routing import pack_router, run_route

HIDDEN, INNER, EXPERTS, SLOTS = 5120, 2304, 384, 6
ARITHMETIC = {"limit": 10.0, "quantize_inner": True, "round_inner": False, "out": "bf16"}
_EXPERT_BYTES = 3 * INNER * HIDDEN * (1 / 2 + 1 / 32)
_SHARED_BYTES = 3 * INNER * HIDDEN * (1 + 1 / 1024)
_PAIR_FLOP = 6 * INNER * HIDDEN
_ROTATED = 4
_CHECKED_EXPERTS = 16


def random_maps(format: str, experts: int) -> tuple[Packed, Packed]:
    """Gate with up, and down. Every bit pattern of a word is a code; exponent fields keep sums near 1."""
    first = empty_weights(format, experts, 2, INNER, HIDDEN, torch.device("cuda"))
    second = empty_weights(format, experts, 1, HIDDEN, INNER, torch.device("cuda"))
    return Packed(_drawn(first, format), (experts, 2 * INNER, HIDDEN)), Packed(_drawn(second, format), ())


def _drawn(weights: ExpertWeights, format: str) -> ExpertWeights:
    weights.words.random_(-(2**31), 2**31)
    field = {"mxfp4": 245, "fp8_block32": 233}[format]
    fields = torch.randint(field, field + 3, (*weights.scales.shape, 4), dtype=torch.uint8, device="cuda")
    weights.scales.copy_(fields.view(torch.int32).squeeze(-1))
    weights.factors.fill_(1.0)
    return weights


def random_step(rows: int, experts: int = EXPERTS) -> tuple[QuantTensor, Tensor, Tensor]:
    """Quantised rows, distinct experts of each, and routing weights."""
    x = quantize_rows(torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16), FORMATS["mxfp8"])
    ids = torch.rand(rows, experts, device="cuda").topk(SLOTS, -1).indices.to(torch.int32)
    weights = torch.rand(rows, SLOTS, device="cuda")
    return x, ids, weights * (1.5 / weights.sum(-1, keepdim=True))


def measurements() -> Iterator[Measurement]:
    """The expert layer for 1 to 8192 rows, then the router."""
    routed, shared = random_maps("mxfp4", EXPERTS), [random_maps("fp8_block32", 1) for _ in range(_ROTATED)]
    for rows, target in ((1, 0.65), (64, 0.65), (256, 0.65), (2048, 0.0), (8192, 0.5)):
        steps = [random_step(rows) for _ in range(_ROTATED if rows == 1 else 1)]
        hit = sum(len(step[1].unique()) for step in steps) / len(steps)
        yield Measurement(
            group="fp4_experts",
            name="expert_layer",
            shape=f"T={rows} of 384 experts {hit:.0f} hit",
            bytes=hit * _EXPERT_BYTES + _SHARED_BYTES + rows * HIDDEN * (1 + 1 / 32 + 2),
            flop=rows * (SLOTS + 1) * _PAIR_FLOP,
            make=partial(_works, steps, routed, shared),
            peer=partial(_peer, rows),
            target=target,
            check=_CHECKS.get(rows),
            tolerance=0.0 if rows == 256 else 5e-3,
        )
    yield from _router_measurements()


def _works(
    steps: list[tuple[QuantTensor, Tensor, Tensor]],
    routed: tuple[Packed, Packed],
    shared: list[tuple[Packed, Packed]],
) -> list[Work]:
    pairs = zip(steps, shared[: len(steps)], strict=True)
    return [partial(run_expert_layer, *step, *routed, *own, **ARITHMETIC) for step, own in pairs]


def _peer(rows: int) -> list[Work]:
    """Both products of the routed experts alone by torch in bf16, on rows that are sorted already."""
    pairs = rows * SLOTS
    counts = torch.bincount(random_step(rows)[1].flatten(), minlength=EXPERTS)
    ends = counts.cumsum(0).to(torch.int32)
    x = torch.randn(pairs, HIDDEN, device="cuda", dtype=torch.bfloat16)
    inner = torch.randn(pairs, INNER, device="cuda", dtype=torch.bfloat16)
    first = torch.empty(EXPERTS, 2 * INNER, HIDDEN, device="cuda", dtype=torch.bfloat16).normal_()
    second = torch.empty(EXPERTS, HIDDEN, INNER, device="cuda", dtype=torch.bfloat16).normal_()

    grouped_product = torch._grouped_mm  # noqa: SLF001 - the only grouped product that torch 2.11 has

    def multiply() -> None:
        grouped_product(x, first.transpose(1, 2), ends, out_dtype=torch.bfloat16)
        grouped_product(inner, second.transpose(1, 2), ends, out_dtype=torch.bfloat16)

    return [multiply]


def error_against_reference(rows: int) -> float:
    """``|out - reference| / |reference|`` with packed weights, against the op's float32 definition."""
    weights = {
        "gate_up": _fp4(_CHECKED_EXPERTS, 2 * INNER, HIDDEN),
        "down": _fp4(_CHECKED_EXPERTS, HIDDEN, INNER),
        "shared_gate_up": quantize_blocks(torch.randn(2 * INNER, HIDDEN, device="cuda") / math.sqrt(HIDDEN)),
        "shared_down": quantize_blocks(torch.randn(HIDDEN, INNER, device="cuda") / math.sqrt(INNER)),
    }
    step = random_step(rows, _CHECKED_EXPERTS)
    step[1][0, 2] = -1
    packed = pack_experts(weights, Site())
    expected = expert_layer(*step, *weights.values(), **ARITHMETIC).float()
    actual = run_expert_layer(*step, *packed.values(), **ARITHMETIC).float()
    return _relative(actual, expected)


def _fp4(*shape: int) -> QuantTensor:
    numbers = torch.randn(shape, device="cuda") / math.sqrt(shape[-1])
    return quantize_rows(numbers, FORMATS["mxfp4"])


def _changed_bits() -> float:
    """Share of numbers that differ when 1, 40, 256, 1000 or 4000 rows are worked on at once; 0 for invariant rows."""
    maps = (*random_maps("mxfp4", _CHECKED_EXPERTS), *random_maps("fp8_block32", 1))
    x, ids, weights = random_step(4000, _CHECKED_EXPERTS)
    whole = run_expert_layer(x, ids, weights, *maps, **ARITHMETIC)
    changed = 0
    for rows in (1, 40, 256, 1000):
        part = slice(100, 100 + rows)
        alone = run_expert_layer(x[part], ids[part], weights[part], *maps, **ARITHMETIC)
        changed += int((alone.view(torch.int16) != whole[part].view(torch.int16)).sum())
    return changed / whole.numel() if whole.isfinite().all() else math.inf


_CHECKS: dict[int, Callable[[], float]] = {
    1: partial(error_against_reference, 1),
    64: partial(error_against_reference, 64),
    256: _changed_bits,
    8192: partial(error_against_reference, 700),
}


def _router_measurements() -> Iterator[Measurement]:
    for rows in (1, 64, 256, 8192):
        yield Measurement(
            group="router",
            name="route",
            shape=f"T={rows}",
            bytes=(EXPERTS + rows) * HIDDEN * 2 + rows * SLOTS * 8,
            flop=2 * rows * EXPERTS * HIDDEN,
            make=partial(_router_works, rows),
            peer=partial(_router_peer, rows),
            check=partial(_router_error, rows),
            tolerance=1e-5,
        )


def _router_inputs(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    router = torch.randn(EXPERTS, HIDDEN, device="cuda", dtype=torch.bfloat16) / math.sqrt(HIDDEN)
    return x, torch.randn(EXPERTS, device="cuda"), router.to(torch.bfloat16)


def _router_works(rows: int) -> list[Work]:
    works: list[Work] = []
    for _ in range(40 if rows <= 256 else 2):
        x, bias, router = _router_inputs(rows)
        packed = pack_router({"router": router}, Site())["router"]
        works.append(partial(run_route, x, bias, packed, experts_per_token=SLOTS, scaling=1.5))
    return works


def _router_peer(rows: int) -> list[Work]:
    """The product alone, rounded to bf16, by torch."""
    inputs = [_router_inputs(rows) for _ in range(40 if rows <= 256 else 2)]
    return [partial(torch.mm, x, router.T) for x, _, router in inputs]


def _router_error(rows: int) -> float:
    """Error of the weights where both chose the same experts in the same order; infinite when few rows are the same."""
    x, bias, router = _router_inputs(rows)
    settings = {"experts_per_token": SLOTS, "scaling": 1.5}
    ids, weights = run_route(x, bias, pack_router({"router": router}, Site())["router"], **settings)
    expected_ids, expected = route(x.double(), bias, router, **settings, logits_dtype="f64")
    same = (ids == expected_ids).all(-1)
    return _relative(weights[same].double(), expected[same]) if same.float().mean() > 0.999 else math.inf


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())
