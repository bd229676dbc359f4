"""The arithmetic of a run: DeepInfer's by default, other engines' for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deepinfer_core.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Every choice on which public implementations differ (spec model/00 section 7).

    The caches are rounded in the released formats in all variants.

    Attributes:
        name: Name of the variant.
        activation: Element type of activations and of op results.
        quantize_activations: Inputs of FP8 and FP4 linear maps are rounded to MXFP8.
        score_mode: Index scores: ``fma_chain`` (four bf16 chains, bf16 result) or ``wide``.
        round_probabilities: Attention probabilities are rounded to bf16 before they weigh the values.
        round_context: The attention output is rounded to the activation type before the inverse
            rotation (unfused engines) instead of being quantised from wide precision.
        round_swiglu: The SwiGLU result is rounded to the activation type before it is quantised.
    """

    name: str = "released"
    activation: Literal["bf16", "f32", "f64"] = "bf16"
    quantize_activations: bool = True
    score_mode: Literal["fma_chain", "wide"] = "fma_chain"
    round_probabilities: bool = True
    round_context: bool = False
    round_swiglu: bool = False


_WIDE = Numerics(
    name="f32",
    activation="f32",
    quantize_activations=False,
    score_mode="wide",
    round_probabilities=False,
    round_context=True,
    round_swiglu=True,
)
_BF16 = Numerics(name="bf16", quantize_activations=False, score_mode="wide", round_context=True, round_swiglu=True)

VARIANTS: dict[str, Numerics] = {
    "released": Numerics(),
    "f32": _WIDE,
    "f64": Numerics(
        name="f64",
        activation="f64",
        quantize_activations=False,
        score_mode="wide",
        round_probabilities=False,
        round_context=True,
        round_swiglu=True,
    ),
    "bf16": _BF16,
    "bf16_a8": Numerics(
        name="bf16_a8", quantize_activations=True, score_mode="wide", round_context=True, round_swiglu=True
    ),
}
"""``released`` is DeepInfer's arithmetic; ``f32``, ``bf16``, ``bf16_a8`` are those of the golden files;
``f64`` has noise far below every rounding step, for exact comparison of two ways to compute the same."""


def variant(name: str) -> Numerics:
    """The variant of this name.

    Raises:
        ConfigError: No such variant.
    """
    if name not in VARIANTS:
        raise ConfigError(
            f"numerics {name!r} is unknown; choose one of {', '.join(VARIANTS)}{nearest(name, list(VARIANTS))}"
        )
    return VARIANTS[name]
