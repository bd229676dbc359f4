"""Whether and how drafts are made, and which of them are verified."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import ConfigError, nearest, wrong_choices

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture

METHODS = ("dspark",)
VERIFICATION = ("adaptive", "fixed")
ACCEPTANCE = ("auto", "rejection", "coupled")
AUTO = "auto"
NO_CALIBRATION = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding with the model's own draft module.

    Attributes:
        method: ``dspark``, the only one.
        num_draft_tokens: Drafts per sequence and step at most; ``auto`` for the block that the draft module was
            trained with. Fewer are legal, more are refused: they are not what it has learnt.
        verification: ``adaptive`` verifies the drafts that pay, by their confidence, the load and measured step times,
            and makes none where none pay; ``fixed`` verifies all.
        acceptance: ``rejection``: the output has exactly the law of plain sampling; which tokens come depends on the
            lengths that were verified. ``coupled``: every token is the one that plain sampling draws in the mode
            ``batch_invariant`` with the same seed, and a draft is accepted when it is that token; a few drafts less
            are accepted. ``auto``: coupled where ``batch_invariant`` asks for reproducible tokens, rejection
            elsewhere. Greedy requests get the same tokens either way.
        calibration: Temperatures of the confidence head: ``auto`` for ``dspark_calibration.json`` beside the model if
            there is one, ``none``, a file that ``deepinfer calibrate`` has written, or one number for each draft.

    Raises:
        ConfigError: Something is not allowed; all problems are listed.
    """

    method: str = "dspark"
    num_draft_tokens: int | str = AUTO
    verification: str = "adaptive"
    acceptance: str = AUTO
    calibration: str | tuple[float, ...] = AUTO

    def __post_init__(self) -> None:
        problems = [*self._wrong_names(), *self._wrong_numbers()]
        if problems:
            raise ConfigError(problems, source="speculative_config")

    def draft_length(self, architecture: ModelArchitecture) -> int:
        """Drafts per sequence and step for a model.

        Raises:
            ConfigError: The model has no draft module, or was trained for fewer drafts.
        """
        draft = architecture.draft
        if draft is None:
            raise ConfigError(
                "the model has no draft module (its config has no dspark_block_size), so that drafts cannot be made; "
                "leave speculative_config out",
                source="speculative_config",
            )
        wanted = draft.block_size if self.num_draft_tokens == AUTO else int(self.num_draft_tokens)
        if wanted > draft.block_size:
            raise ConfigError(
                f"num_draft_tokens={wanted}, but the draft module was trained for blocks of {draft.block_size}; ask "
                f"for {draft.block_size} at most",
                source="speculative_config",
            )
        return wanted

    def is_coupled(self, *, batch_invariant: bool) -> bool:
        """Whether tokens are those of plain sampling with the same seed."""
        return batch_invariant if self.acceptance == AUTO else self.acceptance == "coupled"

    def _wrong_names(self) -> list[str]:
        allowed = {"method": METHODS, "verification": VERIFICATION, "acceptance": ACCEPTANCE}
        return wrong_choices({name: getattr(self, name) for name in allowed}, allowed)

    def _wrong_numbers(self) -> list[str]:
        problems: list[str] = []
        count: Any = self.num_draft_tokens
        if count != AUTO and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            problems.append(f"num_draft_tokens={count!r} must be a whole number, 1 or more, or auto")
        temperatures: Any = self.calibration
        if not isinstance(temperatures, str):
            is_listed = isinstance(temperatures, tuple | list) and len(temperatures) > 0
            if not is_listed or not all(_is_temperature(value) for value in temperatures):
                problems.append(
                    f"calibration={temperatures!r} must be auto, none, a file, or positive numbers, one for each draft"
                )
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """What a model is bound with for speculative decoding: a :class:`SpeculativeConfig`, resolved for it.

    Attributes:
        num_drafts: Drafts of a sequence and step.
        is_coupled: Drafts are drawn with the random numbers of the tokens that they stand for.
        is_adaptive: Lengths follow confidence and load.
        temperatures: Of the confidence head, one for each draft.
    """

    num_drafts: int
    is_coupled: bool
    is_adaptive: bool
    temperatures: tuple[float, ...]


NAMES = tuple(field.name for field in fields(SpeculativeConfig))
_VLLM_NAMES = {"num_speculative_tokens": "num_draft_tokens"}


def speculative_config(value: object) -> SpeculativeConfig | None:
    """The record that a user's value stands for: itself, None, or a mapping as in vLLM and in settings files.

    ``num_speculative_tokens``, vLLM's name, counts as ``num_draft_tokens``.

    Raises:
        ConfigError: A name is unknown, a setting has two names, or a value is not allowed.
    """
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"speculative_config={value!r} must be a SpeculativeConfig, a mapping of its fields, or None",
            source="engine",
        )
    given = _own_names(value)
    unknown = [f"{name} is no setting of speculation{nearest(name, NAMES)}" for name in given if name not in NAMES]
    if unknown:
        raise ConfigError(unknown, source="speculative_config")
    if isinstance(given.get("calibration"), list):
        given["calibration"] = tuple(given["calibration"])
    return SpeculativeConfig(**given)


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings of two sources of settings as one: the fields of both, where the later ones win.

    Raises:
        ConfigError: A setting has two names in one mapping.
    """
    return {**_own_names(earlier), **_own_names(later)}


def _own_names(given: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping with our names for vLLM's."""
    both = [
        f"{theirs} is another name of {ours}; give one"
        for theirs, ours in _VLLM_NAMES.items()
        if {theirs, ours} <= given.keys()
    ]
    if both:
        raise ConfigError(both, source="speculative_config")
    return {_VLLM_NAMES.get(str(name), str(name)): value for name, value in given.items()}


def _is_temperature(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
