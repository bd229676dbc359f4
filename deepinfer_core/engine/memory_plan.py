"""What a model needs and what fits: weights by group, their split over devices, caches by context length.

The split is that of the parallel plan (spec engine/07): no tensor or pipeline parallelism, so experts are spread over
all devices by expert parallelism, engram tables by row, and everything else is on every device. Sizes are those of the
stored formats; a backend that keeps weights in a wider layout needs more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod
from typing import Literal

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.config.engram_geometry import engram_rows
from deepinfer_core.model.cache_layout import CacheLayout, cache_layout
from deepinfer_core.weights.header import ITEM_BITS
from deepinfer_core.weights.names import ExpectedTensor, expected_tensors

ROUTED, DRAFT_ROUTED, TABLES, TABLE_SCALES = "routed experts", "draft experts", "engram tables", "engram table scales"
EXPERT_GROUPS = (ROUTED, DRAFT_ROUTED)

TablePlace = Literal["host", "device"]
"""Where the values of the engram tables are: in host memory, read over the network by any device, or on the devices."""
TABLE_PLACES: tuple[TablePlace, ...] = ("host", "device")

_TABLE_ROW_MULTIPLE = 256
"""Table rows are padded to a common multiple of this and of the number of devices (spec engine/07 section 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """Weights that are split in the same way.

    Attributes:
        name: What they are.
        total_bytes: Stored bytes of one copy.
        device_bytes: Bytes on each device, if they are on devices.
        split: How they are spread, in words.
    """

    name: str
    total_bytes: int
    device_bytes: int
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a model fits devices of one size, with its tables in one place.

    Attributes:
        memory_bytes: Memory of one device.
        usable_bytes: The part of it that weights and caches may take.
        tables: Where the engram tables are; None for a model without engram.
        weight_bytes: Weights on each device.
        host_bytes: Table bytes in host memory, over all hosts.
        sequences: Context length -> sequences that one device holds at once.
        smallest: The smallest number of devices of this size that fits; None if no number does.
    """

    memory_bytes: int
    usable_bytes: int
    tables: TablePlace | None
    weight_bytes: int
    host_bytes: int
    sequences: Mapping[int, int]
    smallest: int | None

    @property
    def free_bytes(self) -> int:
        """What is left on each device for caches; negative when the weights alone are too large."""
        return self.usable_bytes - self.weight_bytes

    @property
    def fits(self) -> bool:
        """True when every device holds its weights and a sequence of any of the context lengths."""
        return all(self.sequences.values())


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The needs of one model.

    Attributes:
        architecture: The model.
        stored: Group -> stored bytes of one copy; what is not loaded is not in it.
        not_loaded_bytes: Stored bytes of parts that are not run (vision).
        layout: Sections of a cache block and of a state slot.
    """

    architecture: ModelArchitecture
    stored: Mapping[str, int]
    not_loaded_bytes: int
    layout: CacheLayout

    @property
    def total_bytes(self) -> int:
        """Stored bytes of everything that is loaded."""
        return sum(self.stored.values())

    @cached_property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of each engram table."""
        engram = self.architecture.engram
        return engram_rows(engram) if engram is not None else ()

    def sequence_bytes(self, num_tokens: int) -> int:
        """Cache of one sequence: whole blocks, and its state slot."""
        return self.layout.blocks_for(num_tokens) * self.layout.bytes_per_block + self.layout.bytes_per_slot

    def groups(self, num_devices: int) -> tuple[WeightGroup, ...]:
        """Every group with its part on each of ``num_devices`` devices."""
        return tuple(self._group(name, total, num_devices) for name, total in self.stored.items())

    def fit(
        self, memory_bytes: int, num_devices: int, contexts: Sequence[int], *, share: float, tables: TablePlace | None
    ) -> Fit:
        """Compare the needs with devices of one size.

        Args:
            memory_bytes: Memory of one device.
            num_devices: How many there are.
            contexts: Lengths of sequences in tokens, prompt and output.
            share: Part of the memory that weights and caches may take; the rest is for activations and buffers.
            tables: Where the engram tables are; None for a model without engram.
        """
        usable = int(memory_bytes * share)
        weights = self._device_bytes(num_devices, tables)
        dummies = self.layout.bytes_per_block + self.layout.bytes_per_slot
        free = max(usable - weights - dummies, 0)
        return Fit(
            memory_bytes=memory_bytes,
            usable_bytes=usable,
            tables=tables,
            weight_bytes=weights,
            host_bytes=self._table_share(num_devices) * num_devices if tables == "host" else 0,
            sequences={context: free // self.sequence_bytes(context) for context in contexts},
            smallest=self._smallest(usable - dummies - self.sequence_bytes(max(contexts)), tables),
        )

    def _group(self, name: str, total: int, num_devices: int) -> WeightGroup:
        if name in EXPERT_GROUPS:
            experts = self._num_experts(name)
            held = -(-experts // num_devices)
            words = f"{held} of {experts} experts of each layer"
            return WeightGroup(name=name, total_bytes=total, device_bytes=total // experts * held, split=words)
        if name == TABLES:
            words = f"1/{num_devices} of the rows" if num_devices > 1 else "all rows"
            return WeightGroup(name=name, total_bytes=total, device_bytes=self._table_share(num_devices), split=words)
        return WeightGroup(name=name, total_bytes=total, device_bytes=total, split="on every device")

    def _num_experts(self, group: str) -> int:
        draft = self.architecture.draft
        return draft.experts.num_experts if group == DRAFT_ROUTED and draft else self.architecture.experts.num_experts

    def _table_share(self, num_devices: int) -> int:
        """Value bytes of the table rows of one device, padding rows included."""
        engram = self.architecture.engram
        if engram is None:
            return 0
        multiple = lcm(_TABLE_ROW_MULTIPLE, num_devices)
        padded = sum(-(-rows // multiple) * multiple for rows in self.table_rows)
        return padded // num_devices * engram.head_dim

    def _device_bytes(self, num_devices: int, tables: TablePlace | None) -> int:
        groups = self.groups(num_devices)
        return sum(group.device_bytes for group in groups if group.name != TABLES or tables == "device")

    def _smallest(self, room: int, tables: TablePlace | None) -> int | None:
        """The smallest number of devices whose weights take at most ``room`` bytes of each.

        More devices than experts bring nothing but rows of tables, which are few by then.
        """
        largest = max(map(self._num_experts, EXPERT_GROUPS))
        return next((n for n in range(1, largest + 1) if self._device_bytes(n, tables) <= room), None)


def plan_memory(architecture: ModelArchitecture, *, with_draft: bool = True) -> MemoryPlan:
    """Sum up what a model needs; nothing but its config is read.

    Args:
        architecture: The model.
        with_draft: Count the draft module, its weights and its rings.
    """
    planned = architecture if with_draft else replace(architecture, draft=None)
    stored, not_loaded = _stored_bytes(expected_tensors(planned))
    return MemoryPlan(architecture=planned, stored=stored, not_loaded_bytes=not_loaded, layout=cache_layout(planned))


def _stored_bytes(tensors: Iterable[ExpectedTensor]) -> tuple[dict[str, int], int]:
    """Bytes of each group, the largest first, and of the tensors that are not used."""
    sizes: Counter[str] = Counter()
    not_loaded = 0
    for tensor in tensors:
        num_bytes = prod(tensor.shape) * ITEM_BITS[tensor.dtypes[0]] // 8
        if tensor.is_used:
            sizes[_group_of(tensor)] += num_bytes
        else:
            not_loaded += num_bytes
    return dict(sizes.most_common()), not_loaded


def _group_of(tensor: ExpectedTensor) -> str:
    """The group that a tensor is split with."""
    is_draft = tensor.name.startswith("mtp.")
    if tensor.part == ROUTED:
        return DRAFT_ROUTED if is_draft else ROUTED
    if is_draft:
        return "draft, the rest"
    if tensor.name.endswith("engram.embed.weight"):
        return TABLES
    if tensor.name.endswith("engram.embed.scale"):
        return TABLE_SCALES
    return "engram projections" if tensor.part == "engram" else tensor.part
