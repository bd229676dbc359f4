"""``dspark_calibration.json``: temperatures of the confidence head on disk, and what they were fitted on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from deepinfer_core.errors import ConfigError, nearest

CALIBRATION_FILE = "dspark_calibration.json"
"""Its name beside a model."""
VERSION = 1
_AGAIN = "run 'deepinfer calibrate' again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fit, and how good it is on requests that it was not fitted on.

    Attributes:
        temperatures: One for each draft of a block; the first k of them are right for blocks cut to k drafts.
        block_size: Drafts of a block.
        checkpoint: What tells checkpoints apart, as ``engine.cache_identity`` computes it for config and weights.
        model: What the user called it.
        numerics: Arithmetic of the run.
        temperature: At which tokens were sampled; another one is another regime, for which the fit need not hold.
        num_blocks: Blocks that it was fitted on.
        num_held_out_blocks: Blocks that it was measured on.
        ece_before: Expected calibration error of these without calibration, by position.
        ece_after: With it.
        auc_before: Area under the curve; None where all or none of the blocks survived.
        auc_after: With calibration.
    """

    temperatures: tuple[float, ...]
    block_size: int
    checkpoint: str
    model: str
    numerics: str
    temperature: float
    num_blocks: int
    num_held_out_blocks: int
    ece_before: tuple[float, ...]
    ece_after: tuple[float, ...]
    auc_before: tuple[float | None, ...]
    auc_after: tuple[float | None, ...]


def find_calibration(model_folder: Path) -> Path | None:
    """The calibration beside a model; None when there is none."""
    file = model_folder / CALIBRATION_FILE
    return file if file.is_file() else None


def write_calibration(file: Path, calibration: Calibration) -> None:
    """Write a calibration, readable for people; a file that exists is replaced.

    Raises:
        ConfigError: The file system refuses.
    """
    text = json.dumps({"version": VERSION, **asdict(calibration)}, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", source="calibration") from error


def read_calibration(file: Path, *, block_size: int, checkpoint: str = "") -> Calibration:
    """Read a calibration for a model.

    Another sampling temperature or arithmetic than the run's is no error: which requests come is not known here.

    Args:
        file: What ``deepinfer calibrate`` has written.
        block_size: Drafts of a block of the model's draft module.
        checkpoint: The model's fingerprint; empty to accept the calibration of any.

    Raises:
        ConfigError: It cannot be read, or is not a calibration of this model; all problems are listed.
    """
    source = f"calibration {file}"
    given = _load(file, source)
    if given.get("version") != VERSION:
        raise ConfigError(
            f"version is {given.get('version')!r}, and this program reads version {VERSION}; {_AGAIN}", source
        )
    if problems := [*_wrong_names(given), *_wrong_values(given)]:
        raise ConfigError(problems, source)
    names = [field.name for field in fields(Calibration)]
    calibration = Calibration(**{name: _frozen(given[name]) for name in names})
    if problems := _mismatches(calibration, block_size, checkpoint):
        raise ConfigError(problems, source)
    return calibration


def _load(file: Path, source: str) -> Mapping[str, Any]:
    try:
        parsed: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError("there is no such file; make it with 'deepinfer calibrate'", source) from error
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}", source) from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ConfigError(f"it is not JSON ({error}); {_AGAIN}", source) from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"it is JSON but no object; {_AGAIN}", source)
    return cast(dict[str, Any], parsed)


def _wrong_names(given: Mapping[str, Any]) -> list[str]:
    known = [field.name for field in fields(Calibration)]
    unknown = [name for name in given if name not in known and name != "version"]
    missing = [f"{name} is missing{nearest(name, unknown)}" for name in known if name not in given]
    return missing + [f"{name} is no field of a calibration{nearest(name, known)}" for name in unknown]


def _wrong_values(given: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {given[name]!r}; it must be {words}"
        for name, (allows, words) in _RULES.items()
        if name in given and not allows(given[name])
    ]


def _mismatches(calibration: Calibration, block_size: int, checkpoint: str) -> list[str]:
    """What makes a calibration that is right in itself the wrong one."""
    problems: list[str] = []
    if len(calibration.temperatures) != calibration.block_size:
        problems.append(
            f"it has {len(calibration.temperatures)} temperatures for blocks of {calibration.block_size} drafts; "
            f"{_AGAIN}"
        )
    if calibration.block_size != block_size:
        problems.append(
            f"it is for blocks of {calibration.block_size} drafts, and the model's have {block_size}; give the "
            "calibration of this model, or none"
        )
    if checkpoint and calibration.checkpoint != checkpoint:
        problems.append(
            f"it was made for another checkpoint ({calibration.model}: {calibration.checkpoint}) than the one that is "
            f"opened ({checkpoint}); run 'deepinfer calibrate' on this one, or give calibration none"
        )
    return problems


def _frozen(value: Any) -> Any:
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: Any, allows: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(allows, cast(list[Any], value)))


_TEXT = (lambda value: isinstance(value, str), "a text")
_COUNT = (_is_count, "a whole number, 0 or more")
_ERRORS = (lambda value: _is_list(value, _is_number), "a list of numbers")
_AREAS = (lambda value: _is_list(value, lambda one: one is None or _is_number(one)), "a list of numbers or nulls")

_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperatures": (
        lambda value: _is_list(value, lambda one: _is_number(one) and one > 0) and bool(value),
        "a list of finite numbers above 0, one for each draft of a block",
    ),
    "block_size": (lambda value: _is_count(value) and value > 0, "a whole number, 1 or more"),
    "checkpoint": _TEXT,
    "model": _TEXT,
    "numerics": _TEXT,
    "temperature": (lambda value: _is_number(value) and value >= 0, "a finite number, 0 or more"),
    "num_blocks": _COUNT,
    "num_held_out_blocks": _COUNT,
    "ece_before": _ERRORS,
    "ece_after": _ERRORS,
    "auc_before": _AREAS,
    "auc_after": _AREAS,
}
"""Field -> what its value may be, and that in words."""
