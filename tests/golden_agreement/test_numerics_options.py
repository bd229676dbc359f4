"""Where public implementations disagree on numbers, each choice is an option, and the default is DeepInfer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from deepinfer_core.config.numerics import VARIANTS, Numerics, variant
from deepinfer_core.engine.diff import compare_traces
from deepinfer_core.engine.trace import Trace
from deepinfer_core.errors import ConfigError
from deepinfer_core.reference.backend import CpuBackend
from tests.golden_agreement.golden_files import FILES
from tests.golden_agreement.workshop import Workshop

if TYPE_CHECKING:
    from torch import Tensor

PROMPT = next(file for file in FILES if file.id == "tiny/random_7")


def test_the_default_is_the_arithmetic_of_deepinfer() -> None:
    assert asdict(Numerics()) == {
        "name": "released",
        "activation": "bf16",
        "quantize_activations": True,
        "score_mode": "fma_chain",
        "round_probabilities": True,
        "round_context": False,
        "round_swiglu": False,
    }
    assert VARIANTS["released"] == Numerics()


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "bf16_a8"])
def test_the_golden_variants_round_where_the_golden_files_say(name: str) -> None:
    chosen = variant(name)

    assert chosen.name == name
    assert chosen.activation == name.partition("_")[0]
    assert chosen.quantize_activations == (name == "bf16_a8")
    assert chosen.round_probabilities == name.startswith("bf16")
    assert (chosen.score_mode, chosen.round_context, chosen.round_swiglu) == ("wide", True, True)


@pytest.fixture(scope="module")
def default(workshop: Workshop) -> Mapping[str, Tensor]:
    return Trace(workshop.bound("tiny", Numerics(), CpuBackend()), PROMPT.token_ids).run()


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"activation": "f32"}, "attn_out.0"),
        ({"quantize_activations": False}, "attn_out.0"),
        ({"round_probabilities": False}, "attn_out.0"),
        ({"round_context": True}, "attn_out.0"),
        ({"round_swiglu": True}, "ffn_out.0"),
        ({"score_mode": "wide"}, "index_scores.1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_changes_numbers_from_its_place_on_and_none_before(
    workshop: Workshop, default: Mapping[str, Tensor], change: dict[str, Any], first: str
) -> None:
    model = workshop.bound("tiny", replace(Numerics(), name="changed", **change), CpuBackend())

    found = compare_traces(default, Trace(model, PROMPT.token_ids).run(), lambda name: 0.0)

    assert found.different[0].name == first


def test_an_unknown_arithmetic_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bf16_a8'"):
        variant("bf16a8")
