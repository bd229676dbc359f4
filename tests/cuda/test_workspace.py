"""Whole steps at released widths on tensors without storage: what they hold at once is within what was declared.

Nothing is computed and no GPU is needed: adapters only list their launches, and every tensor that they or the graph ask
for is counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the wheel of triton is for Linux")

from deepinfer_core.backend.allocations import AllocationCounter
from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.device import MemoryInfo
from deepinfer_core.config.numerics import variant
from deepinfer_core.runtime.batch import SequenceRows, step_inputs
from deepinfer_core.runtime.model import BoundModel, bind_model
from deepinfer_core.runtime.workspace import EngineLimits
from deepinfer_core.tensor import Packed, QuantTensor
from deepinfer_core.weights.assemble import assemble
from deepinfer_core.weights.check import read_config
from deepinfer_core.weights.header import ITEM_BITS
from deepinfer_core.weights.names import expected_tensors
from deepinfer_cuda.launch import nothing_started
from deepinfer_cuda.ops import TABLE, expert_packing, linear_weight

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from slice_config import slice_config

META = torch.device("meta")
DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
}
BLOCK = 128


class MetaDevice:
    """A Hopper GPU whose tensors have no storage."""

    torch_device = META
    facts: Mapping[str, str] = {"architecture": "sm90", "name": "no storage", "memory_bytes": "0", "compute_units": "1"}

    def memory(self) -> MemoryInfo:
        return MemoryInfo(free_bytes=0, total_bytes=0)

    def synchronize(self) -> None:
        """Nothing runs."""

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(host, device=META)

    def capture(self, work: Any) -> Any:
        raise NotImplementedError

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()


class MetaBackend:
    """The table of the CUDA backend on that device."""

    name = "cuda"
    table = TABLE
    capabilities = Capabilities()

    def device(self, index: int = 0) -> MetaDevice:
        assert index == 0
        return MetaDevice()


class EmptyTensors:
    """Weights of the right shapes and types."""

    def __init__(self, architecture: Any) -> None:
        self._expected = {tensor.name: tensor for tensor in expected_tensors(architecture)}

    def tensor(self, name: str) -> torch.Tensor:
        expected = self._expected[name]
        assert expected.dtypes[0] in ITEM_BITS
        return torch.empty(expected.shape, dtype=DTYPES[expected.dtypes[0]], device=META)


def empty_linear(weight: QuantTensor, groups: int) -> Packed:
    """What ``pack_fp8`` returns, without contents."""
    rows, width = weight.shape
    num_out = rows // groups
    padded_out, padded_width = -(-num_out // 256) * 256, -(-width // 128) * 128
    payload = linear_weight.Fp8Weight(
        data=torch.empty(groups * padded_out // 2, 2 * padded_width, dtype=torch.float8_e4m3fn, device=META),
        factor=torch.empty(groups * padded_out // 32, padded_width // 32, device=META),
        groups=groups,
        num_out=num_out,
        width=width,
    )
    return Packed(payload, (rows, width))


def empty_experts(name: str, weight: QuantTensor) -> Packed:
    """What the packing of expert weights returns, without contents."""
    shape = tuple(weight.shape) if len(weight.shape) == 3 else (1, *weight.shape)
    matrices = 2 if name.endswith("gate_up") else 1
    form = "fp8_block32" if name.startswith("shared") else "mxfp4"
    packed = expert_packing.empty_weights(form, shape[0], matrices, shape[1] // matrices, shape[2], META)
    return Packed(packed, tuple(weight.shape))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoundModel]:
    folder = tmp_path_factory.mktemp("slice")
    (folder / "config.json").write_text(json.dumps(slice_config()), encoding="utf-8")
    architecture, _ = read_config(folder)
    size = architecture.engram.compressed_vocab_size if architecture.engram else 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_weight, "pack_fp8", empty_linear)
        patch.setattr(expert_packing, "_packed", empty_experts)
        yield bind_model(
            architecture,
            assemble(architecture, EmptyTensors(architecture)),
            tuple(token % size for token in range(architecture.vocab_size)),
            MetaBackend(),
            numerics=variant("released"),
            max_positions=1 << 17,
        )


def rows_of(number: int, start: int, stop: int) -> SequenceRows:
    tokens = [5] * (stop - start)
    return SequenceRows(
        token_ids=tokens,
        compressed_ids=tokens,
        start=start,
        ngram_history=[],
        state_slot=1 + number,
        blocks=list(range(1, 2 + stop // BLOCK)),
    )


def peak_bytes(model: BoundModel, rows: list[SequenceRows], *, prefill: bool) -> int:
    """The most bytes that a step holds, from its inputs to its logits."""
    caches = model.allocate(4, len(rows))
    with torch.inference_mode(), nothing_started(), AllocationCounter() as counter:
        inputs = step_inputs(rows, prefill=prefill, lookback=model.lookback, device=model.device)
        hidden = model.graph.forward(model.graph.begin(inputs, caches))
        del inputs
        model.graph.logits(hidden[: len(rows)])
    return counter.peak_bytes


@pytest.mark.parametrize(("rows", "before"), [(256, 0), (2048, 0), (8192, 0), (8192, 100_000), (16384, 0)])
def test_prefill_is_within_its_declaration(model: BoundModel, rows: int, before: int) -> None:
    limits = EngineLimits(max_num_batched_tokens=rows, max_num_seqs=1, max_model_len=before + rows)
    declared = model.workspace(limits).prefill

    peak = peak_bytes(model, [rows_of(0, before, before + rows)], prefill=True)

    assert model.workspace(limits).unstated == ()
    assert peak <= declared.total_bytes, (peak, declared)
    if rows >= 2048:  # with few rows most of it is for logits of prompts, which nobody asked for here
        assert peak >= 0.75 * declared.total_bytes, (peak, declared)


@pytest.mark.parametrize(("sequences", "context"), [(1, 8192), (64, 8192), (256, 8192), (256, 131_000)])
def test_decode_is_within_its_declaration(model: BoundModel, sequences: int, context: int) -> None:
    limits = EngineLimits(max_num_batched_tokens=8192, max_num_seqs=sequences, max_model_len=context + 1)
    declared = model.workspace(limits).decode

    peak = peak_bytes(model, [rows_of(n, context, context + 1) for n in range(sequences)], prefill=False)

    assert peak <= declared.total_bytes, (peak, declared)


@pytest.mark.parametrize("rows", [1, 256, 8192, 65536])
def test_no_op_takes_more_than_half_a_gibibyte_for_itself(model: BoundModel, rows: int) -> None:
    limits = EngineLimits(max_num_batched_tokens=rows, max_num_seqs=256, max_model_len=1 << 17)

    workspace = model.workspace(limits)

    assert max(workspace.prefill.scratch_bytes, workspace.decode.scratch_bytes) <= 512 << 20, workspace
