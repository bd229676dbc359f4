"""Compile recorded launches for a target that need not be present, and read what they would use there.

The recipe is spec/dependencies.md section 2.1. It works in a process without ``TRITON_INTERPRET``, beside a CPU build
of torch: Triton carries its own assembler.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from deepinfer_cuda.launch import Launch

SHARED_MEMORY_BYTES = 227 * 1024
"""What one program may use on SM90 and SM100."""
_TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "u8", torch.int8: "i8",
    torch.int32: "i32", torch.int64: "i64", torch.float8_e4m3fn: "fp8e4nv", torch.bool: "i1", torch.float64: "fp64",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One kernel compiled for one target.

    Attributes:
        kernel: Its name.
        capability: 90 or 100.
        registers: Of one thread.
        shared_bytes: Shared memory of one program.
        spill_bytes: Local memory of one thread: anything but 0 means that registers did not suffice.
        ptx: The code before assembly.
    """

    kernel: str
    capability: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    ptx: str

    @property
    def problems(self) -> list[str]:
        """Why it must not ship, in words; empty when it may."""
        found: list[str] = []
        if self.shared_bytes > SHARED_MEMORY_BYTES:
            found.append(f"{self.shared_bytes} bytes of shared memory, at most {SHARED_MEMORY_BYTES} are there")
        if self.spill_bytes:
            found.append(f"spills: {self.spill_bytes} bytes of local memory for each thread")
        if re.search(r"^\s*trap;", self.ptx, re.MULTILINE):
            found.append("the compiler gave up in silence: the code is a trap")
        return [f"{self.kernel} on sm_{self.capability}: {problem}" for problem in found]


def compile_launch(launch: Launch, capability: int) -> Compiled:
    """Compile a recorded launch exactly as its first start would.

    Args:
        launch: From :func:`deepinfer_cuda.launch.recorded`.
        capability: Ten times the compute capability: 90 or 100.

    Raises:
        triton.CompilationError: The kernel does not compile for the target.
    """
    signature, constants, attributes = _specialisation(launch)
    made: Any = triton.compile(
        ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages},
    )
    registers, spill_bytes = _usage(made.asm["cubin"])
    return Compiled(
        kernel=launch.kernel.__name__,
        capability=capability,
        registers=registers,
        shared_bytes=int(made.metadata.shared),
        spill_bytes=spill_bytes,
        ptx=made.asm["ptx"],
    )


def _specialisation(launch: Launch) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Types, constants and alignments of a launch's arguments, as Triton's own launcher finds them."""
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    given = {p.name: v for p, v in zip(launch.kernel.params, launch.arguments, strict=False)} | launch.constants
    for index, parameter in enumerate(launch.kernel.params):
        value = given.get(parameter.name, parameter.default if parameter.has_default else None)
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
            continue
        name, aligned = _type_of(value)
        signature[parameter.name] = name
        if aligned and not parameter.do_not_specialize:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _type_of(value: Any) -> tuple[str, bool]:
    """Triton's word for an argument's type, and whether 16 divides it (addresses of tensors always do)."""
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}", True
    if isinstance(value, bool):
        return "i1", False
    if isinstance(value, int):
        return ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0
    return "fp32", False


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and local bytes of a thread, as the disassembler that Triton carries reports them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - fixed tool
    registers = [int(number) for number in re.findall(r"REG:(\d+)", text)]
    local = [int(number) for number in re.findall(r"(?:STACK|LOCAL):(\d+)", text)]
    return max(registers, default=0), max(local, default=0)
