"""Run one call - by the reference on the host, or by a candidate on its device - and bring back what it left behind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from deepinfer_core.backend.binding import Binder, BoundOp
from deepinfer_core.backend.device import Device
from deepinfer_core.conformance.call import Call
from deepinfer_core.conformance.guard import Placement, place
from deepinfer_core.conformance.implementations import Candidate
from deepinfer_core.conformance.values import to_host
from deepinfer_core.conformance.witness import no_reference
from deepinfer_core.ops.quantize.quantize import dequantize
from deepinfer_core.tensor import QuantTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a call left behind, on the host.

    Attributes:
        result: What it returned.
        mutated: The arguments that the contract allows it to write, after the call.
    """

    result: Any
    mutated: Mapping[str, Any]


def observe_reference(call: Call) -> Observation:
    """The oracle: the op's own body on host tensors."""
    inputs = call.inputs()
    result = call.op.reference(**inputs, **call.attributes)
    return Observation(result=result, mutated={name: inputs[name] for name in call.op.mutates})


def observe(candidate: Candidate, call: Call, device: Device, *, row_gap: bool = False) -> Observation:
    """Run a candidate on guarded inputs.

    Raises:
        ContractError: The case itself breaks the contract.
        ConformanceFailure: It wrote where it must not, or quietly ran a reference.
    """
    call.check()
    placement = place(call.inputs(), device, row_gap=row_gap)
    bound = candidate.bind(call, placement.arguments)
    result = run_bound(candidate, bound, placement)
    device.synchronize()
    placement.verify(call.op.mutates)
    return collect(candidate, placement, result)


def run_bound(candidate: Candidate, bound: BoundOp, placement: Placement) -> Any:
    """Call a bound op with the tensors that are not weights, by name."""
    op = candidate.op
    tensors = {name: value for name, value in placement.arguments.items() if name not in op.weights}
    with no_reference(op) if candidate.kind == "native" else nullcontext():
        return bound(**tensors)


def collect(candidate: Candidate, placement: Placement, result: Any) -> Observation:
    """Bring results and written arguments to the host."""
    mutated = {name: placement.arguments[name] for name in candidate.op.mutates}
    readable = _readable(candidate, result)
    return Observation(result=to_host(readable), mutated=to_host(mutated))


def _readable(candidate: Candidate, result: Any) -> Any:
    """Quantised results in the backend's own storage as values, by the backend's own ``quantize.dequantize``."""
    if isinstance(result, tuple):
        return tuple(_readable(candidate, item) for item in result)
    if isinstance(result, QuantTensor) and result.storage != "canonical":
        return Binder(candidate.backend.whole).bind(dequantize, out="f32")(result)
    return result
