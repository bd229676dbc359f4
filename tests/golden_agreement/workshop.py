"""Opens models and runs them on the prompts of golden files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer_core.config.numerics import Numerics, variant
from deepinfer_core.engine.opening import OpenedModel, open_model
from deepinfer_core.engine.trace import Trace
from deepinfer_core.runtime.model import BoundModel, bind_model
from deepinfer_core.weights.load import load_model
from tests.golden_agreement.golden_files import CHECKPOINTS, GoldenFile
from tests.golden_agreement.rounding import RoundingBackend, Roundings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from deepinfer_core.backend.interface import Backend


@dataclass(frozen=True)
class Run:
    """A trace, and how its roundings went."""

    tensors: Mapping[str, Tensor]
    roundings: Roundings


@dataclass
class Workshop:
    """Opens each model once for each arithmetic.

    Attributes:
        accelerator: Backend of the runs as users make them; the runs with visible roundings are torch's on the CPU.
    """

    accelerator: str = "cpu"
    _opened: dict[tuple[str, str], OpenedModel] = field(default_factory=dict)
    _rounding: dict[tuple[str, str], tuple[RoundingBackend, BoundModel]] = field(default_factory=dict)

    def opened(self, model: str, numerics: str) -> OpenedModel:
        """The model as a user opens it."""
        if (model, numerics) not in self._opened:
            folder = CHECKPOINTS[model]
            self._opened[model, numerics] = open_model(folder, accelerator=self.accelerator, numerics=numerics)
        return self._opened[model, numerics]

    def bound(self, model: str, numerics: Numerics, backend: Backend) -> BoundModel:
        """The model on any backend, with any arithmetic."""
        opened = self.opened(model, "f32")
        parameters = load_model(opened.folder).parameters
        architecture, compressed_map = opened.model.architecture, opened.model.compressed_map
        return bind_model(architecture, parameters, compressed_map, backend, numerics=numerics)

    def traced(self, file: GoldenFile, numerics: str) -> Mapping[str, Tensor]:
        """A trace of the file's prompt as a user makes it."""
        return Trace(self.opened(file.model, numerics).model, file.token_ids).run()

    def rounded(self, file: GoldenFile, numerics: str, roundings: Roundings) -> Run:
        """A trace of the file's prompt with visible roundings."""
        if (file.model, numerics) not in self._rounding:
            backend = RoundingBackend()
            self._rounding[file.model, numerics] = backend, self.bound(file.model, variant(numerics), backend)
        backend, model = self._rounding[file.model, numerics]
        backend.roundings = roundings
        return Run(Trace(model, file.token_ids).run(), roundings)

    def exact(self, file: GoldenFile) -> Run:
        """The run in float64 arithmetic with the roundings of the golden file."""
        return self.rounded(file, "f64", Roundings(nudges=file.nudges))

    def replayed(self, file: GoldenFile, exact: Run) -> Run:
        """The run in float32 arithmetic with the roundings of the exact one."""
        return self.rounded(file, "f32", Roundings(replayed=exact.roundings.recorded))
