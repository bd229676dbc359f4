"""The backend itself, without any op: one check for each sentence of the protocols in ``deepinfer_core.backend``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.device import MemoryInfo
from deepinfer_core.backend.interface import OpTable
from deepinfer_core.conformance.check import Check, ConformanceFailure, expect
from deepinfer_core.conformance.compare import compare_bits
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.errors import CapacityError
from deepinfer_core.ops.cases import TORCH_DTYPES

_FACTS = ("architecture", "name", "memory_bytes", "compute_units")
_NO_SUCH_DEVICE = 1 << 20


def checks(subject: Subject) -> Iterator[Check]:
    """``backend/<sentence>``; counted in the family ``device``."""
    for statement in _STATEMENTS:
        name = statement.__name__.removeprefix("_")
        yield Check(id=f"backend/{name}", family="device", run=partial(statement, subject))


def _has_a_name(subject: Subject) -> None:
    name = subject.backend.name
    _expect_type(name, str, "name")
    expect(name.isidentifier() and name == name.lower(), f"name is {name!r}; it must be a lower-case word")


def _table_lists_known_ops(subject: Subject) -> None:
    """Every key of the table is an op of the catalogue, with at least one implementation."""
    table = subject.backend.table
    _expect_type(table, OpTable, "table")
    unknown = sorted(op.name for op in table.entries if op not in subject.catalogue)
    expect(not unknown, f"the table claims {', '.join(unknown)}, which the catalogue does not have")
    empty = sorted(op.name for op, found in table.entries.items() if not found)
    expect(not empty, f"the table lists {', '.join(empty)} without an implementation")


def _capabilities_are_stated(subject: Subject) -> None:
    _expect_type(subject.backend.capabilities, Capabilities, "capabilities")


def _an_absent_device_is_refused(subject: Subject) -> None:
    try:
        subject.backend.device(_NO_SUCH_DEVICE)
    except CapacityError:
        return
    raise ConformanceFailure(f"device({_NO_SUCH_DEVICE}) does not raise CapacityError")


def _facts_are_complete(subject: Subject) -> None:
    """Every fact that limits may ask about is there, as text; counts are positive integers."""
    facts: Mapping[str, Any] = subject.device.facts
    absent = [name for name in _FACTS if not facts.get(name)]
    expect(not absent, f"facts lack {', '.join(absent)}")
    wordless = [name for name, value in facts.items() if not isinstance(value, str)]
    expect(not wordless, f"facts {', '.join(wordless)} are not text")
    for name in ("memory_bytes", "compute_units"):
        expect(
            facts[name].isdecimal() and int(facts[name]) > 0, f"fact {name} is {facts[name]!r}, not a positive integer"
        )


def _tensors_live_on_the_device(subject: Subject) -> None:
    device = subject.device.torch_device
    made = torch.zeros(3, device=device)
    expect(made.device.type == device.type, f"a tensor made on {device} lives on {made.device}")


def _memory_is_counted(subject: Subject) -> None:
    found = subject.device.memory()
    _expect_type(found, MemoryInfo, "memory()")
    expect(0 < found.free_bytes <= found.total_bytes, f"free {found.free_bytes} bytes, total {found.total_bytes} bytes")


def _total_memory_is_constant(subject: Subject) -> None:
    before = subject.device.memory().total_bytes
    held = torch.zeros(1 << 20, device=subject.device.torch_device)
    after = subject.device.memory().total_bytes
    expect(before == after, f"total memory went from {before} to {after} bytes when {held.nbytes} bytes were allocated")


def _upload_keeps_every_bit(subject: Subject) -> None:
    """Of all element types, of empty tensors and of tensors that are not dense."""
    generator = torch.Generator().manual_seed(0)
    for name, dtype in TORCH_DTYPES.items():
        host = torch.randint(0, 2, (4, 6), generator=generator).to(dtype)
        for shown, tensor in ((name, host), (f"transposed {name}", host.t()), (f"empty {name}", host[:0])):
            there = subject.device.upload(tensor)
            expect(there.device.type == subject.device.torch_device.type, f"upload of {shown} lands on {there.device}")
            subject.device.synchronize()
            compare_bits(there.cpu(), tensor, f"upload of {shown}")


def _upload_is_a_copy(subject: Subject) -> None:
    """The host may reuse its tensor once the device is synchronised."""
    host = torch.arange(1000)
    there = subject.device.upload(host)
    subject.device.synchronize()
    host.zero_()
    compare_bits(there.cpu(), torch.arange(1000), "uploaded tensor after the host's was overwritten")


def _download_keeps_every_bit(subject: Subject) -> None:
    """Of all element types and of tensors that are not dense."""
    generator = torch.Generator().manual_seed(0)
    for name, dtype in TORCH_DTYPES.items():
        host = torch.randint(0, 2, (4, 6), generator=generator).to(dtype)
        there = host.to(subject.device.torch_device)
        found, turned = subject.device.download([there, there.t()]).wait()
        expect(found.device.type == "cpu", f"download of {name} lands on {found.device}")
        compare_bits(found, host, f"download of {name}")
        compare_bits(turned, host.t(), f"download of transposed {name}")


def _download_is_a_copy_of_that_moment(subject: Subject) -> None:
    """Work queued before it is in it, work queued after it is not, and waiting twice is harmless."""
    there = torch.zeros(1000, device=subject.device.torch_device)
    for _ in range(100):
        there += 1
    download = subject.device.download([there])
    there.zero_()
    for _ in range(2):
        [found] = download.wait()
        compare_bits(found, torch.full((1000,), 100.0), "downloaded tensor after the device's was overwritten")


def _synchronize_waits(subject: Subject) -> None:
    """After it, work queued before is done."""
    counter = torch.zeros(1, device=subject.device.torch_device)
    for _ in range(100):
        counter += 1
    subject.device.synchronize()
    compare_bits(counter.cpu(), torch.tensor([100.0]), "a counter incremented 100 times")


def _a_graph_reads_its_buffers_again(subject: Subject) -> None:
    """Replaying works on what the buffers hold then, as often as it is asked for."""
    source = subject.device.upload(torch.arange(8.0))
    target = torch.zeros_like(source)

    def work() -> None:
        target.copy_(source * 2)

    work()
    graph = subject.device.capture(work)
    for value in (3.0, -1.0, 3.0):
        source.fill_(value)
        graph.replay()
        subject.device.synchronize()
        compare_bits(target.cpu(), torch.full((8,), 2 * value), f"replay on {value}")


def _waiting_raises_where_it_is_forbidden(subject: Subject) -> None:
    """In ``no_sync``, where that is claimed. Work that does not wait is fine there, and so is waiting afterwards."""
    there = subject.device.upload(torch.ones(4))
    with subject.device.no_sync():
        there = there + 1
        download = subject.device.download([there])
    expect(download.wait()[0].sum().item() == 8.0, "a download that was queued where waiting is forbidden is wrong")
    expect(there.sum().item() == 8.0, "waiting for the device fails after the scope was left")
    if not subject.backend.capabilities.no_sync_scope:
        return
    try:
        with subject.device.no_sync():
            there.sum().item()
    except RuntimeError:
        expect(there.sum().item() == 8.0, "waiting for the device fails after the scope was left by an exception")
        return
    raise ConformanceFailure(
        "capability no_sync_scope is claimed, but reading a device value in the scope does not raise"
    )


def _expect_type(value: object, wanted: type, what: str) -> None:
    expect(isinstance(value, wanted), f"{what} is a {type(value).__name__}, not {wanted.__name__}")


_STATEMENTS: tuple[Callable[[Subject], None], ...] = (
    _has_a_name,
    _table_lists_known_ops,
    _capabilities_are_stated,
    _an_absent_device_is_refused,
    _facts_are_complete,
    _tensors_live_on_the_device,
    _memory_is_counted,
    _total_memory_is_constant,
    _upload_keeps_every_bit,
    _upload_is_a_copy,
    _download_keeps_every_bit,
    _download_is_a_copy_of_that_moment,
    _synchronize_waits,
    _a_graph_reads_its_buffers_again,
    _waiting_raises_where_it_is_forbidden,
)
