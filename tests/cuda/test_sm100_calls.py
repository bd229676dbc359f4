"""The SM100 adapters call DeepGEMM and FlashMLA as their contracts say, and give the numbers of the ops.

Both libraries are stand-ins that check what they are given and compute on the CPU. What the libraries really do has
not been seen: this shows that layouts, names and the steps around the calls are right, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.conformance.compare import compare_values
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.errors import LayoutError, UnsupportedByBackend
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import draw_indices, sparse_prefill
from deepinfer_core.ops.cases import Case, Draw, ErrorCase
from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.kv_cache.store import draw_cache
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.linear.grouped_linear import grouped_linear
from deepinfer_core.ops.linear.linear import linear
from deepinfer_core.ops.moe.experts import draw_experts, expert_layer, expert_mlp
from deepinfer_core.tensor import QuantTensor
from tests.cuda.stand_in_deep_gemm import DeepGemm
from tests.cuda.stand_in_flash_mla import FlashMla

pytest.importorskip("triton", reason="the wheel of triton is for Linux")

from deepinfer_cuda.limits import needs_release
from deepinfer_cuda.ops.sm100 import IMPLEMENTATIONS
from deepinfer_cuda.ops.sm100.attention import SPARSE_DECODE

AnyOp = Op[..., Any]
_WHERE = ("needs architecture", "needs the package", "needs deepinfer-")
"""How the limits begin that ask for the machine and the libraries, not for the call."""


def _by_reference(op: AnyOp) -> Callable[..., Any]:
    return op.reference


def _implementation(op: AnyOp) -> Implementation:
    return SPARSE_DECODE if op is sparse_decode else IMPLEMENTATIONS[op][0]


def _refusals(op: AnyOp, site: Site) -> list[str]:
    """What the limits say against a call, the machine and the libraries apart."""
    limits = [limit for limit in _implementation(op).limits if not limit.text.startswith(_WHERE)]
    return [text for limit in limits if (text := limit.refusal(site))]


def _site(case: Case) -> Site:
    return Site(case.sizes, case.attributes, case.dtype)


def _run(op: AnyOp, case: Case, library: Any) -> Any:
    """The adapter's result for a case, with weights packed as at load."""
    implementation = _implementation(op)
    inputs = case.inputs(op)
    weights = {name: inputs.pop(name) for name in op.weights}
    packed = implementation.pack(weights, _site(case)) if implementation.pack else weights
    steps = {"use": _by_reference} if op.weights else {}
    return implementation.run(**inputs, **packed, **case.attributes, library=lambda: library, **steps)


def _require_agreement(op: AnyOp, case: Case, library: Any) -> None:
    assert not _refusals(op, _site(case))
    expected = op.reference(**case.inputs(op), **case.attributes)
    compare_values(_run(op, case, library), expected, op.tolerance, case.id)


def _own_cases(op: AnyOp) -> list[Case]:
    """Cases of the op that the limits let through."""
    cases = [case for case in op.all_cases() if not isinstance(case, ErrorCase)]
    return [case for case in cases if not _refusals(op, _site(case))]


_LINEAR_CASES = [(op, case) for op in (linear, grouped_linear) for case in _own_cases(op)]


@pytest.mark.parametrize(("op", "case"), _LINEAR_CASES, ids=[f"{op.name}/{case.id}" for op, case in _LINEAR_CASES])
def test_linear_maps_agree_with_the_op_on_its_own_cases(op: AnyOp, case: Case) -> None:
    _require_agreement(op, case, DeepGemm())


def test_the_limits_let_every_case_of_quantised_rows_and_weights_through() -> None:
    quantised = [f"{op.name}/{case.id}" for op, case in _LINEAR_CASES if case.id.endswith("_rows")]

    assert [name.split("/")[1] for name in quantised if name.startswith("linear.linear/")] == [
        f"fp8_{rows}_rows" for rows in (0, 1, 5, 64, 67)
    ]
    assert len(quantised) == 8


@pytest.mark.parametrize(("op", "function"), [(linear, "fp8_fp4_gemm_nt"), (grouped_linear, "fp8_einsum")])
def test_rows_reach_deep_gemm_and_no_rows_do_not(op: AnyOp, function: str) -> None:
    library = DeepGemm()
    cases = {case.id: case for case in _own_cases(op)}

    _run(op, cases["fp8_67_rows"], library)
    _run(op, cases["fp8_0_rows"], library)

    assert library.calls == [function]


def _linear_case(make: Callable[[Draw], dict[str, Any]], **settings: Any) -> Case:
    attributes: dict[str, Any] = {"out": "bf16", **settings}
    return Case("wide", T=5, I=256, O=64, make=make, **attributes)


def _rows_of_a_wider_tensor(draw: Draw) -> dict[str, Any]:
    """Quantised rows that are columns of a wider tensor, and begin at an odd row."""
    made = next(c for c in linear.all_cases() if c.id == "fp8_5_rows").make
    assert made is not None
    wide = made(Draw("wide", {"T": 6, "I": 512, "O": 64}, "bf16"))
    x: QuantTensor = wide["x"]
    narrow = QuantTensor(x.data[1:, 128:384], x.scale[1:, 4:12], x.format)
    return {"x": narrow, "weight": made(Draw("narrow", {"T": 1, "I": 256, "O": 64}, "bf16"))["weight"]}


def test_rows_may_be_a_part_of_a_wider_tensor() -> None:
    _require_agreement(linear, _linear_case(_rows_of_a_wider_tensor), DeepGemm())


def test_a_product_may_stay_unrounded() -> None:
    _require_agreement(linear, _linear_case(_rows_of_a_wider_tensor, out="f32"), DeepGemm())


def test_rows_that_are_not_quantised_are_multiplied_by_the_decoded_weight() -> None:
    library = DeepGemm()

    def make(draw: Draw) -> dict[str, Any]:
        return {"weight": _rows_of_a_wider_tensor(draw)["weight"]}

    _require_agreement(linear, _linear_case(make), library)

    assert library.calls == []


def _experts(rows: int, **settings: Any) -> Case:
    released: dict[str, Any] = {"limit": 10.0, "quantize_inner": True, "round_inner": False, "out": "bf16"}
    sizes: dict[str, Any] = {"E": 8, "K": 2, "H": 128, "F": 128}
    return Case(f"{rows}_rows", T=rows, make=draw_experts, **{**sizes, **released, **settings})


@pytest.mark.parametrize("op", [expert_mlp, expert_layer], ids=lambda op: op.name)
@pytest.mark.parametrize(
    ("rows", "alignment", "form"),
    [(0, 128, ""), (1, 128, "masked"), (33, 128, "masked"), (33, 16, "contiguous"), (150, 64, "contiguous")],
)
def test_experts_agree_with_the_op_in_either_form(op: AnyOp, rows: int, alignment: int, form: str) -> None:
    library = DeepGemm(alignment)

    _require_agreement(op, _experts(rows), library)

    assert [call for call in library.calls if call in ("masked", "contiguous")] == ([form, form] if form else [])


@pytest.mark.parametrize(
    "settings", [{"limit": None}, {"limit": 0.5}, {"round_inner": True}, {"K": 1}, {"K": 5}], ids=str
)
def test_experts_agree_with_the_op_in_other_arithmetic(settings: dict[str, Any]) -> None:
    _require_agreement(expert_mlp, _experts(9, **settings), DeepGemm())


def test_more_rows_than_go_through_the_experts_at_once_go_in_turns() -> None:
    library = DeepGemm()

    _require_agreement(expert_mlp, _experts(4100, E=2, K=1), library)

    assert library.calls == ["contiguous", "contiguous", "masked", "masked"]


class _Recorder:
    """Takes grouped products of tensors without contents, and notes the shapes of ``a`` and ``d``."""

    def __init__(self, shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        self._shapes = shapes

    def get_mk_alignment_for_contiguous_layout(self) -> int:
        return 128

    def m_grouped_fp8_fp4_gemm_nt_contiguous(self, *operands: Any, **_: Any) -> None:
        (data, _scales), _weight, result, _layout = operands
        self._shapes.append((tuple(data.shape), tuple(result.shape)))


def test_rows_of_experts_are_never_looked_at_by_the_host() -> None:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    case = _experts(600)
    inputs = case.inputs(expert_mlp)
    inputs = {name: _without_contents(value) for name, value in inputs.items() if not name.startswith("shared")}
    weights = {name: inputs.pop(name) for name in expert_mlp.weights}
    implementation = _implementation(expert_mlp)
    assert implementation.pack is not None

    result = implementation.run(
        **inputs,
        **implementation.pack(weights, _site(case)),
        **case.attributes,
        library=lambda: _Recorder(shapes),
        use=_by_reference,
    )

    assert (result.shape, result.device.type) == ((600, 2, 128), "meta")
    assert shapes == [((2304, 128), (2304, 256)), ((2304, 128), (2304, 128))]


def _without_contents(value: Any) -> Any:
    if isinstance(value, QuantTensor):
        return QuantTensor(value.data.to("meta"), value.scale.to("meta"), value.format)
    return value.to("meta")


def test_experts_refuse_rows_that_are_not_quantised() -> None:
    case = _experts(3)
    inputs = case.inputs(expert_mlp)
    weights = {name: inputs.pop(name) for name in expert_mlp.weights}
    implementation = _implementation(expert_mlp)
    assert implementation.pack is not None
    inputs["x"] = torch.zeros(3, 128, dtype=torch.bfloat16)

    with pytest.raises(UnsupportedByBackend, match="the rows must be quantised too"):
        implementation.run(**inputs, **implementation.pack(weights, _site(case)), **case.attributes, library=DeepGemm)


_ATTENTION: dict[str, Any] = {"N": 64, "D": 512, "W": 128, "scale": 512**-0.5, "round_probabilities": True}


def _prompt(*, context: bool) -> Callable[[Draw], dict[str, Any]]:
    def make(draw: Draw) -> dict[str, Any]:
        sizes = draw.sizes
        made: dict[str, Any] = {"window_indices": draw_indices(draw, sizes["T"], sizes["W"], sizes["Q"])}
        if context:
            made["context_rows"] = draw.normal("A", "D")
            made["context_indices"] = draw_indices(draw, sizes["T"], sizes["S"], sizes["A"])
        return made

    return make


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_attention_of_prompt_rows_agrees_with_the_op(rows: int, context: bool, out: str) -> None:
    library = FlashMla()
    more = {"A": 50, "S": 256} if context else {}
    case = Case(f"{rows}_rows", T=rows, Q=40, out=out, make=_prompt(context=context), **more, **_ATTENTION)

    _require_agreement(sparse_prefill, case, library)

    assert library.calls == ["flash_mla_sparse_fwd"] * (rows > 0)


def _cached(context: str, *, padding_records: int = 3) -> Callable[[Draw], dict[str, Any]]:
    """Caches whose blocks lie further apart than their rows need, as sections of a pool do."""

    def make(draw: Draw) -> dict[str, Any]:
        slots = draw.sizes["M"] * draw.sizes["P"]
        made: dict[str, Any] = {
            "window": draw_cache(draw, "mxfp8", padding=padding_records * FORMATS["mxfp8"].record_bytes(512)),
            "window_slots": draw_indices(draw, draw.sizes["T"], draw.sizes["W"], slots),
        }
        if context:
            record = FORMATS[context].record_bytes(512)
            made["context"] = draw_cache(draw, context, padding=padding_records * record)
            made["context_slots"] = draw_indices(draw, draw.sizes["T"], draw.sizes["S"], slots)
        return made

    return make


@pytest.mark.parametrize("context", ["fp4_e4m3", "mxfp8", ""])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_attention_of_decode_rows_agrees_with_the_op(rows: int, context: str) -> None:
    library = FlashMla()
    more = {"S": 128} if context else {}
    case = Case(f"{rows}_rows", T=rows, M=3, P=20, out="f32", make=_cached(context), **more, **_ATTENTION)

    _require_agreement(sparse_decode, case, library)

    assert library.calls == ["flash_mla_with_kvcache"] * (rows > 0)


def test_lists_of_keys_are_filled_up_to_whole_tiles() -> None:
    sizes: dict[str, Any] = {**_ATTENTION, "W": 133, "S": 70}
    prompt = Case("prompt", T=3, Q=40, A=50, out="f32", make=_prompt(context=True), **sizes)
    decode = Case("decode", T=3, M=3, P=60, out="f32", make=_cached("fp4_e4m3"), **sizes)

    _require_agreement(sparse_prefill, prompt, FlashMla())
    _require_agreement(sparse_decode, decode, FlashMla())


def test_decode_refuses_caches_whose_blocks_are_not_whole_records_apart() -> None:
    def make(draw: Draw) -> dict[str, Any]:
        return {**_cached("")(draw), "window": draw_cache(draw, "mxfp8", padding=128)}

    case = Case("padded", T=1, M=3, P=20, out="f32", make=make, **_ATTENTION)

    with pytest.raises(LayoutError, match="not a multiple of a record's 528"):
        _run(sparse_decode, case, FlashMla())


def test_decode_is_not_offered_while_pools_are_not_padded_to_whole_records() -> None:
    assert sparse_decode not in IMPLEMENTATIONS


@pytest.mark.parametrize(
    ("op", "sizes", "attributes", "words"),
    [
        (linear, {"I": 96}, {}, "I=96: I must be a multiple of 128"),
        (grouped_linear, {"I": 128}, {"groups": 2}, "a group has 64 channels: channels of a group must be a multiple"),
        (grouped_linear, {"N": 4, "D": 16}, {"groups": 2}, "a group has 32 channels"),
        (expert_mlp, {"H": 64}, {}, "H=64: H must be a multiple of 128"),
        (expert_layer, {"F": 32}, {}, "F=32: F must be a multiple of 128"),
        (expert_mlp, {}, {"quantize_inner": False}, "quantize_inner must be True"),
        (sparse_prefill, {"N": 48}, {}, "N=48: N must be 64 or 128"),
        (sparse_decode, {"D": 576}, {}, "D=576: D must be 512"),
        (sparse_decode, {}, {"round_probabilities": False}, "round_probabilities must be True"),
    ],
)
def test_shapes_that_the_libraries_do_not_take_are_refused_by_a_limit(
    op: AnyOp, sizes: dict[str, int], attributes: dict[str, Any], words: str
) -> None:
    assert words in "; ".join(_refusals(op, Site(sizes, attributes)))


@pytest.mark.parametrize("op", [*IMPLEMENTATIONS, sparse_decode], ids=lambda op: op.name)
def test_every_implementation_asks_for_the_architecture_the_package_and_its_release(op: AnyOp) -> None:
    refusals = [limit.refusal(Site(facts={"architecture": "sm90"})) for limit in _implementation(op).limits]

    assert any("architecture is sm90: needs architecture sm100" in text for text in refusals)
    assert any(text.startswith("needs the package") for text in refusals)
    assert any("is not installed: needs deepinfer-" in text for text in refusals)


@pytest.mark.parametrize("op", [*IMPLEMENTATIONS, sparse_decode], ids=lambda op: op.name)
def test_no_implementation_claims_what_was_never_measured(op: AnyOp) -> None:
    implementation = _implementation(op)

    assert not implementation.row_invariant
    assert "never run on hardware" in implementation.note


def test_a_release_of_another_series_is_refused() -> None:
    limit = needs_release("torch", "0.3")

    assert limit.refusal(Site()) == f"torch is {torch.__version__}: needs torch 0.3.x"
    assert not needs_release("torch", torch.__version__.split(".")[0]).refusal(Site())
