"""The released model's published sizes, and how weights and caches divide over devices."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from deepinfer_core.engine.accelerator_memory import find_accelerator, known_accelerators
from deepinfer_core.engine.memory_plan import MemoryPlan, plan_memory
from deepinfer_core.engine.model_config import find_config
from deepinfer_core.errors import ConfigError

GIB = 2**30
CONTEXTS = (8192, 131072)
TINY = Path(__file__).parents[3] / "deepinfer_core/models/tiny"


@pytest.fixture(scope="module")
def plan() -> MemoryPlan:
    return plan_memory(find_config("released").architecture)


def per_device(plan: MemoryPlan, num_devices: int) -> dict[str, int]:
    return {group.name: group.device_bytes for group in plan.groups(num_devices)}


def test_released_sizes_are_the_published_ones(plan: MemoryPlan) -> None:
    """Spec model/02 section 8: an expert 18.8 MB, backbone experts 289 GB, tables 203 GB, the rest about 18 GB."""
    tables = plan.stored["engram tables"] + plan.stored["engram table scales"]
    rest = plan.total_bytes - tables - plan.stored["routed experts"]

    assert plan.stored["routed experts"] / (40 * 384) == pytest.approx(18.8e6, rel=2e-3)
    assert plan.stored["routed experts"] == pytest.approx(289e9, rel=2e-3)
    assert tables == (384006168 + 384016682) * 264
    assert rest == pytest.approx(18e9, rel=2e-2)
    assert plan.total_bytes + plan.not_loaded_bytes == pytest.approx(510e9, rel=2e-3)


def test_released_caches_are_the_published_ones(plan: MemoryPlan) -> None:
    assert plan.layout.bytes_per_token == 890
    assert plan.layout.bytes_per_slot == pytest.approx(3.13e6, rel=1e-3)
    assert plan.sequence_bytes(131072) == 1024 * 113920 + plan.layout.bytes_per_slot
    assert plan.sequence_bytes(1) == 113920 + plan.layout.bytes_per_slot


def test_tiny_sizes_are_those_of_its_files() -> None:
    config = find_config("tiny")
    plan = plan_memory(config.architecture)
    in_files = json.loads((TINY / "model.safetensors.index.json").read_text())["metadata"]["total_size"]

    assert plan.total_bytes + plan.not_loaded_bytes == in_files


def test_experts_are_spread_and_the_rest_is_on_every_device(plan: MemoryPlan) -> None:
    one, eight = per_device(plan, 1), per_device(plan, 8)

    assert eight["routed experts"] * 8 == one["routed experts"] == plan.stored["routed experts"]
    assert eight["draft experts"] * 8 == plan.stored["draft experts"]
    assert {name for name in one if eight[name] == one[name]} == set(one) - {
        "routed experts",
        "draft experts",
        "engram tables",
    }


def test_a_number_of_devices_that_does_not_divide_the_experts_rounds_up(plan: MemoryPlan) -> None:
    of_one_expert = plan.stored["routed experts"] // 384

    assert per_device(plan, 5)["routed experts"] == 77 * of_one_expert
    assert per_device(plan, 1000)["routed experts"] == of_one_expert


@pytest.mark.parametrize("num_devices", [1, 3, 8])
def test_table_rows_are_padded_to_equal_shares(plan: MemoryPlan, num_devices: int) -> None:
    multiple = math.lcm(256, num_devices)
    rows = sum(-(-n // multiple) * multiple for n in plan.table_rows)

    assert per_device(plan, num_devices)["engram tables"] * num_devices == rows * 256
    assert 0 <= rows - sum(plan.table_rows) < 2 * multiple


def test_sequences_fill_what_weights_leave(plan: MemoryPlan) -> None:
    fit = plan.fit(140 * GIB, 8, CONTEXTS, share=0.9, tables="device")
    used = fit.weight_bytes + plan.layout.bytes_per_block + plan.layout.bytes_per_slot
    room = int(140 * GIB * 0.9)

    assert fit.fits
    assert fit.host_bytes == 0
    for context, number in fit.sequences.items():
        assert used + number * plan.sequence_bytes(context) <= room
        assert used + (number + 1) * plan.sequence_bytes(context) > room


def test_tables_in_host_memory_leave_the_devices_more(plan: MemoryPlan) -> None:
    host, device = (plan.fit(140 * GIB, 8, CONTEXTS, share=0.9, tables=place) for place in ("host", "device"))

    assert device.weight_bytes - host.weight_bytes == per_device(plan, 8)["engram tables"]
    assert host.host_bytes == 8 * per_device(plan, 8)["engram tables"]
    assert host.sequences[8192] > device.sequences[8192]


@pytest.mark.parametrize("place", ["host", "device"])
def test_the_smallest_number_of_devices_is_where_it_begins_to_fit(plan: MemoryPlan, place: str) -> None:
    smallest = plan.fit(140 * GIB, 1, CONTEXTS, share=0.9, tables=place).smallest

    verdicts = {n: plan.fit(140 * GIB, n, CONTEXTS, share=0.9, tables=place) for n in range(1, 10)}
    assert [n for n, fit in verdicts.items() if fit.fits] == list(range(smallest, 10))
    assert {fit.smallest for fit in verdicts.values()} == {smallest}


def test_devices_that_cannot_hold_what_is_not_spread_are_never_enough(plan: MemoryPlan) -> None:
    fit = plan.fit(16 * GIB, 64, CONTEXTS, share=0.9, tables="host")

    assert fit.smallest is None
    assert not fit.fits
    assert fit.free_bytes < 0


def test_without_the_draft_its_weights_and_rings_are_gone(plan: MemoryPlan) -> None:
    without = plan_memory(find_config("released").architecture, with_draft=False)

    assert not any(name.startswith("draft") for name in without.stored)
    assert plan.layout.bytes_per_slot - without.layout.bytes_per_slot == pytest.approx(3 * 134 * 528, abs=256)
    assert without.layout.bytes_per_block == plan.layout.bytes_per_block


def test_every_known_accelerator_says_where_its_number_comes_from() -> None:
    for accelerator in known_accelerators():
        assert 16 * GIB < accelerator.memory_bytes < 1024 * GIB
        assert len(accelerator.source) > 20
        assert find_accelerator(accelerator.name.upper()) == accelerator


def test_a_backend_of_this_machine_is_asked_for_its_memory() -> None:
    found = find_accelerator("cpu")

    assert found.memory_bytes > GIB
    assert "on this machine" in found.source


def test_an_accelerator_that_nobody_knows_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"'h2000' is not known; name one of .*--memory-gib; did you mean 'h200'"):
        find_accelerator("h2000")
