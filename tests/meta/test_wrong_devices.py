"""Devices that break one sentence of the protocol are caught by the check for that sentence, and by no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from types import MappingProxyType

import pytest
import torch

from deepinfer_core.backend.capability import Capabilities
from deepinfer_core.backend.device import MemoryInfo
from deepinfer_core.backend.interface import OpTable
from deepinfer_core.conformance import suite_backend
from deepinfer_core.conformance.runner import run_checks
from deepinfer_core.conformance.subject import subject_of
from deepinfer_core.reference.backend import CpuBackend
from deepinfer_core.reference.device import Copies, EagerGraph, HostDevice

_NONE = Capabilities()


class Uncopied(HostDevice):
    def upload(self, host):
        return host


class Narrowing(HostDevice):
    def upload(self, host):
        return host.float() if host.dtype == torch.float64 else host.clone()


class Undownloaded(HostDevice):
    def download(self, tensors):
        return Copies(tuple(tensors))


class Rounding(HostDevice):
    def download(self, tensors):
        return Copies(tuple(t.float() if t.dtype == torch.float64 else t.clone() for t in tensors))


class PlayedOnce(HostDevice):
    def capture(self, work):
        del work
        return EagerGraph(lambda: None)


class Nameless(HostDevice):
    facts = MappingProxyType({"architecture": "x86", "name": "", "memory_bytes": "1", "compute_units": "1"})


class InGigabytes(HostDevice):
    facts = MappingProxyType({"architecture": "x86", "name": "cpu", "memory_bytes": "1.5 GB", "compute_units": "1"})


class Overdrawn(HostDevice):
    def memory(self):
        return MemoryInfo(free_bytes=2, total_bytes=1)


class Planted(CpuBackend):
    table = OpTable()

    def __init__(self, device: HostDevice, capabilities: Capabilities = _NONE) -> None:
        super().__init__()
        self._device, self.capabilities = device, capabilities


class Boundless(Planted):
    def device(self, index=0):
        del index
        return self._device


def failing(backend) -> set[str]:
    subject = subject_of(backend, ())
    results = run_checks(suite_backend.checks(subject), today=date(2026, 1, 1), accelerator="planted")
    return {result.id.removeprefix("backend/") for result in results if result.status == "failed"}


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        (Uncopied(), "upload_is_a_copy"),
        (Narrowing(), "upload_keeps_every_bit"),
        (Undownloaded(), "download_is_a_copy_of_that_moment"),
        (Rounding(), "download_keeps_every_bit"),
        (PlayedOnce(), "a_graph_reads_its_buffers_again"),
        (Nameless(), "facts_are_complete"),
        (InGigabytes(), "facts_are_complete"),
        (Overdrawn(), "memory_is_counted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HostDevice) else value,
)
def test_broken_sentence_is_caught(device, sentence):
    found = failing(Planted(device))

    assert found == {sentence}


def test_right_device_passes():
    found = failing(Planted(HostDevice()))

    assert found == set()


def test_device_that_is_not_there_must_be_refused():
    found = failing(Boundless(HostDevice()))

    assert found == {"an_absent_device_is_refused"}


def test_claimed_scope_that_does_not_raise_is_caught():
    found = failing(Planted(HostDevice(), Capabilities(no_sync_scope=True)))

    assert found == {"waiting_raises_where_it_is_forbidden"}


def test_scope_that_stays_closed_is_caught():
    class Sticky(HostDevice):
        @contextmanager
        def no_sync(self) -> Iterator[None]:
            yield
            raise RuntimeError("still closed")

    found = failing(Planted(Sticky()))

    assert found == {"waiting_raises_where_it_is_forbidden"}
