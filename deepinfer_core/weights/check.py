"""Is a checkpoint complete and right for the format? Config and headers only; every problem at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.config.checkpoint import ParsedConfig, parse_config
from deepinfer_core.errors import CheckpointError, ConfigError
from deepinfer_core.weights.compare import Comparison, compare_tensors
from deepinfer_core.weights.index import CheckpointIndex, read_index
from deepinfer_core.weights.names import ExpectedTensor, expected_tensors, scale_name

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
_BLOCK_SIZE = "quantization_config.weight_block_size"
_SAMPLE_MATRIX = "layers.0.attn.wq_b.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What was found in a checkpoint folder.

    Attributes:
        folder: The checkpoint.
        architecture: The model, if its config makes one.
        index: Where every tensor is.
        config_problems: What is wrong with the config file.
        tensor_problems: What is wrong with files and tensors.
        notes: What is unusual but harmless, each kind once.
        num_expected: Tensors that the config asks for; 0 when that is not known.
        bytes_by_part: Stored bytes of every part of the model.
        bytes_by_dtype: Stored bytes of every element type.
    """

    folder: Path
    architecture: ModelArchitecture | None
    index: CheckpointIndex
    config_problems: tuple[str, ...]
    tensor_problems: tuple[str, ...]
    notes: tuple[str, ...]
    num_expected: int = 0
    bytes_by_part: Mapping[str, int] = field(default_factory=dict[str, int])
    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.config_problems, *self.tensor_problems)

    def require_clean(self) -> ModelArchitecture:
        """The architecture of a checkpoint without problems.

        Raises:
            ConfigError: The config file is wrong (tensors may be, too); holds every problem.
            CheckpointError: Only files or tensors are wrong; holds every problem.
        """
        if self.config_problems:
            raise ConfigError(self.problems, str(self.folder))
        if self.tensor_problems or self.architecture is None:
            raise CheckpointError(self.problems, str(self.folder))
        return self.architecture

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "folder": str(self.folder),
            "clean": not self.problems,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "num_shards": len(set(self.index.shards.values())),
            "num_tensors": len(self.index.tensors),
            "num_expected": self.num_expected,
            "total_bytes": self.index.total_bytes,
            "bytes_by_part": dict(self.bytes_by_part),
            "bytes_by_dtype": dict(self.bytes_by_dtype),
        }


def check_checkpoint(folder: Path, *, strict: bool = False) -> CheckReport:
    """Check config, index and headers of a checkpoint; no weight is read and nothing is raised.

    Args:
        folder: The checkpoint.
        strict: Count tensors that no parameter needs as a problem, not as a note.
    """
    parsed, file_problems = _read_config(folder)
    index = read_index(folder)
    expected: dict[str, ExpectedTensor] = {}
    compared = Comparison((), ())
    if parsed.architecture is not None:
        expected = {tensor.name: tensor for tensor in expected_tensors(parsed.architecture)}
        if index.shards or not index.problems:  # otherwise nobody knows which tensors there are
            compared = compare_tensors(expected, index, strict=strict)
    return CheckReport(
        folder=folder,
        architecture=parsed.architecture,
        index=index,
        config_problems=tuple(_with_observed_block_size(parsed.problems, index)),
        tensor_problems=(*file_problems, *index.problems, *compared.problems),
        notes=(*parsed.notes, *compared.notes, *_tokenizer_note(folder)),
        num_expected=len(expected),
        bytes_by_part=_sum_bytes(
            (expected[n].part if n in expected else "not needed", s.num_bytes) for n, s in index.tensors.items()
        ),
        bytes_by_dtype=_sum_bytes((stored.dtype, stored.num_bytes) for stored in index.tensors.values()),
    )


def read_config(folder: Path) -> tuple[ModelArchitecture, tuple[str, ...]]:
    """The architecture of a checkpoint folder from its config file alone, and notes on the file.

    Raises:
        CheckpointError: There is no config file.
        ConfigError: The config file is wrong; all problems are in it.
    """
    parsed, file_problems = _read_config(folder)
    if file_problems:
        raise CheckpointError(file_problems, str(folder))
    if parsed.problems or parsed.architecture is None:
        raise ConfigError(parsed.problems, str(folder / CONFIG_FILE))
    return parsed.architecture, parsed.notes


def _read_config(folder: Path) -> tuple[ParsedConfig, tuple[str, ...]]:
    """The parsed config, and what is wrong with the folder when there is no config file in it."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return ParsedConfig(architecture=None, problems=(), unused=()), (f"the folder has no {CONFIG_FILE}",)
    try:
        config: object = json.loads(path.read_bytes())
    except ValueError as error:
        return ParsedConfig(architecture=None, problems=(f"{CONFIG_FILE} is not JSON ({error})",), unused=()), ()
    if not isinstance(config, dict):
        return ParsedConfig(architecture=None, problems=(f"{CONFIG_FILE} is not a JSON object",), unused=()), ()
    return parse_config(cast(dict[str, Any], config)), ()


def _tokenizer_note(folder: Path) -> tuple[str, ...]:
    return () if (folder / TOKENIZER_FILE).is_file() else (f"{TOKENIZER_FILE} is absent: text cannot be encoded",)


def _with_observed_block_size(problems: Iterable[str], index: CheckpointIndex) -> Iterator[str]:
    """Add to a refused block size the one that the stored scales have, seen at one matrix."""
    weight, scale = index.tensors.get(_SAMPLE_MATRIX), index.tensors.get(scale_name(_SAMPLE_MATRIX))
    for problem in problems:
        if problem.startswith(_BLOCK_SIZE) and weight and scale and all(scale.shape):
            tile = [-(-size // scales) for size, scales in zip(weight.shape, scale.shape, strict=False)]
            yield f"{problem}; the stored scales of {_SAMPLE_MATRIX} have blocks of {tile}"
        else:
            yield problem


def _sum_bytes(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes by name, largest first."""
    total: Counter[str] = Counter()
    for name, num_bytes in items:
        total[name] += num_bytes
    return dict(total.most_common())
