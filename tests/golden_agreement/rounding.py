"""A CPU backend whose 4- and 8-bit roundings are recorded, and can be told which way to go where it is a toss-up.

Between its roundings the model is smooth, so two correct implementations part by no more than their noise. At a
rounding they may part by a whole code, if the value lies on the boundary between two codes up to that noise: a
near-tie. This backend makes near-ties visible: it can round a named group as if its values were a little larger or
smaller (a nudge), and it can take over the roundings of another run (replay) while it checks that each of them is
one that noise may cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.backend.interface import Implementation, OpTable
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.declare import Op
from deepinfer_core.ops.kv_cache.rotate_store import extend_window, rotate_store
from deepinfer_core.ops.quantize.quantize import quantize
from deepinfer_core.ops.quantize.rounding import dequantize_values, quantize_rows
from deepinfer_core.ops.rotary.apply_rotary import apply_rotary
from deepinfer_core.reference.backend import CpuBackend

if TYPE_CHECKING:
    from torch import Tensor

NOISE = 2e-6
"""Of a value about to be rounded, in units of the largest one of its row. Nearly all float32 values are nearer to the
exact ones than a quarter of this."""

Site = tuple[str, int]
"""What is rounded, and the how many-eth of its kind in a run. ``window``: keys of a prompt, one site for each layer.
``main``, ``index``: compressed entries and index keys, one for each source layer. ``query``: index queries, one for
each index layer. ``ring``: keys of draft layers and of decode steps."""

_STORED = {"fp4_e4m3": "main", "mxfp4": "index", "mxfp8": "ring"}


@dataclass(frozen=True, slots=True)
class Nudge:
    """Round one group of channels as if its values were larger (or smaller) by the noise.

    Attributes:
        site: Where.
        row: Row of the rounded matrix: a position or an entry; of queries, position times heads plus head.
        group: Group of channels that share a scale.
        sign: 1 for larger, -1 for smaller.
    """

    site: Site
    row: int
    group: int
    sign: int


@dataclass(frozen=True, slots=True)
class _Possible:
    """Rounded rows as they are, and if all values were larger or smaller by the noise."""

    own: Tensor
    larger: Tensor
    smaller: Tensor

    def of(self, sign: int) -> Tensor:
        return self.larger if sign > 0 else self.smaller


@dataclass
class Roundings:
    """What a run rounds, and how.

    Attributes:
        nudges: Groups that are nudged.
        replayed: Rounded values by site that are taken over from another run.
        recorded: Rounded values by site.
        near_ties: Groups that noise may round differently.
        num_taken_over: Values of the other run that are not this run's own.
        num_undecided: Values that noise may round differently, in sites that are taken over.
        num_wrong: Values of the other run that noise does not explain.
    """

    nudges: tuple[Nudge, ...] = ()
    replayed: Mapping[Site, Tensor] = field(default_factory=dict)
    recorded: dict[Site, Tensor] = field(default_factory=dict)
    near_ties: list[Nudge] = field(default_factory=list)
    num_taken_over: int = 0
    num_undecided: int = 0
    num_wrong: int = 0
    _counts: Counter[str] = field(default_factory=Counter)

    def round(self, kind: str, values: Tensor, format: str) -> Tensor:
        """Rounded values; rounding them once more changes nothing."""
        site = (kind, self._counts[kind])
        self._counts[kind] += 1
        rows = values.flatten(0, -2)
        possible = _possible_roundings(rows, NOISE, format)
        if site in self.replayed:
            rounded = self.replayed[site].to(values.dtype)
            self._judge(rounded, possible.own, _possible_roundings(rows, 2 * NOISE, format))  # both runs are noisy
        else:
            rounded = self._nudged(site, possible, FORMATS[format].group)
        self.recorded[site] = rounded
        return rounded.reshape(values.shape)

    def _nudged(self, site: Site, possible: _Possible, group: int) -> Tensor:
        rounded = possible.own.clone()
        for nudge in self.nudges:
            if nudge.site == site:
                channels = slice(nudge.group * group, (nudge.group + 1) * group)
                rounded[nudge.row, channels] = possible.of(nudge.sign)[nudge.row, channels]
        for sign in (1, -1):
            places = (possible.of(sign) != possible.own).unflatten(-1, (-1, group)).any(-1).nonzero().tolist()
            self.near_ties += [Nudge(site, row, number, sign) for row, number in places]
        return rounded

    def _judge(self, rounded: Tensor, own: Tensor, possible: _Possible) -> None:
        """Count what is taken over, and what of it noise does not explain."""
        values = torch.stack((possible.own, possible.larger, possible.smaller))
        self.num_taken_over += int((rounded != own).sum())
        self.num_undecided += int((values != own).any(0).sum())
        self.num_wrong += int(((rounded < values.amin(0)) | (rounded > values.amax(0))).sum())


class RoundingBackend:
    """The CPU backend with visible roundings; ``roundings`` is replaced before each run.

    The three ops that round run by their references here; the kit compares their native implementations with those.
    """

    name = "cpu"

    def __init__(self) -> None:
        self._cpu = CpuBackend()
        self.capabilities = self._cpu.capabilities
        self.roundings = Roundings()
        visible = {rotate_store: self._rotate_store, extend_window: self._extend_window, quantize: self._quantize}
        own = {op: (Implementation(run=run),) for op, run in visible.items()}
        self.table = OpTable({**self._cpu.table.entries, **own})

    def device(self, index: int = 0) -> Any:
        return self._cpu.device(index)

    def _rotate_store(self, *args: Any, **kwargs: Any) -> None:
        format = args[4].format
        rotate_store.body(self._use(_STORED[format], format), *args, **kwargs)

    def _extend_window(self, *args: Any, **kwargs: Any) -> Tensor:
        return extend_window.body(self._use("window", "mxfp8"), *args, **kwargs)

    def _quantize(self, x: Tensor, *, format: str) -> Any:
        return quantize.reference(self.roundings.round("query", x, format), format=format)

    def _use(self, kind: str, format: str) -> Callable[[Op[..., Any]], Callable[..., Any]]:
        """Steps of a composite, with the rounding right behind the rotation."""

        def rotate(*args: Any) -> Tensor:
            return self.roundings.round(kind, apply_rotary.reference(*args), format)

        return lambda op: rotate if op is apply_rotary else op.reference


def _possible_roundings(rows: Tensor, noise: float, format: str) -> _Possible:
    step = noise * rows.abs().amax(-1, keepdim=True)
    own, larger, smaller = (
        dequantize_values(quantize_rows(rows + sign * step, FORMATS[format]), rows.dtype) for sign in (0, 1, -1)
    )
    return _Possible(own, larger, smaller)
