"""Every case of the sampling and speculation ops keeps its contract and runs without reading a device value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops import contract
from deepinfer_core.ops.cases import Case, ErrorCase
from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.sampling.apply_logit_bias import apply_logit_bias
from deepinfer_core.ops.sampling.apply_penalties import apply_penalties
from deepinfer_core.ops.sampling.apply_token_mask import apply_token_mask
from deepinfer_core.ops.sampling.finite_rows import finite_rows
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.race import race
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.sampling.top_logprobs import top_logprobs
from deepinfer_core.ops.speculation.accept_prefix import accept_prefix
from deepinfer_core.ops.speculation.choose_lengths import choose_lengths
from deepinfer_core.ops.speculation.confidence import confidence
from deepinfer_core.ops.speculation.draft_features import draft_features
from deepinfer_core.ops.speculation.markov_logits import markov_logits
from deepinfer_core.ops.speculation.verify import verify

OPS = (
    greedy,
    finite_rows,
    apply_token_mask,
    apply_logit_bias,
    apply_penalties,
    process_logits,
    sample,
    race,
    top_logprobs,
    draft_features,
    markov_logits,
    confidence,
    verify,
    accept_prefix,
    choose_lengths,
)
CASES = [pytest.param(op, case, id=f"{op.name}-{case.id}") for op in OPS for case in op.all_cases()]
VALID = [p for p in CASES if not isinstance(p.values[1], ErrorCase)]
INVALID = [p for p in CASES if isinstance(p.values[1], ErrorCase)]


def _results(op: Op[..., Any], inputs: dict[str, Any], case: Case) -> tuple[Tensor, ...]:
    result = op(**inputs, **case.attributes)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(("op", "case"), VALID)
def test_a_case_keeps_the_contract_and_changes_no_input(op: Op[..., Any], case: Case) -> None:
    inputs, fresh = case.inputs(op), case.inputs(op)

    contract.check(op, (), {**inputs, **case.attributes})
    _results(op, inputs, case)

    for name, value in inputs.items():
        assert value is None or torch.equal(value.nan_to_num(7.0), fresh[name].nan_to_num(7.0)), name


@pytest.mark.parametrize(("op", "case"), INVALID)
def test_an_error_case_is_refused_in_words(op: Op[..., Any], case: ErrorCase) -> None:
    with pytest.raises(case.raises, match=case.match):
        contract.check(op, (), {**case.inputs(op), **case.attributes})


@pytest.mark.parametrize(("op", "case"), VALID)
def test_a_reference_reads_no_value_on_the_host_and_knows_its_shapes(op: Op[..., Any], case: Case) -> None:
    inputs = case.inputs(op)
    without_values = {name: None if value is None else value.to("meta") for name, value in inputs.items()}

    real = _results(op, inputs, case)
    abstract = _results(op, without_values, case)

    assert [(r.shape, r.dtype) for r in real] == [(a.shape, a.dtype) for a in abstract]


@pytest.mark.parametrize(
    ("op", "case"), [p for p in VALID if p.values[0].row_axis and p.values[0] is not markov_logits]
)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(op: Op[..., Any], case: Case) -> None:
    inputs = case.inputs(op)
    num_rows = case.sizes[op.row_axis]
    row_shaped = {p.name for p in op.tensors if p.shape and p.shape.dims[0] == op.row_axis}
    whole = _results(op, inputs, case)

    for row in {0, num_rows // 2, num_rows - 1} if num_rows else set():
        alone = {n: v[row : row + 1] if n in row_shaped and v is not None else v for n, v in inputs.items()}
        for together, single in zip(whole, _results(op, alone, case), strict=True):
            assert torch.equal(together[row : row + 1].nan_to_num(7.0), single.nan_to_num(7.0))
