"""Every tensor of every golden file, in float64 and in float32 arithmetic.

Between the roundings of cached values (and of index queries) the model is smooth: two right implementations part by
their noise, 1e-6 in float32. Only where a value lies on the boundary between two codes up to that noise may a whole
code change, and everything behind it. golden/README.md therefore allows wide bounds for long prompts. These tests need
none:

* *Exact*: our run in float64, where noise is far too small to decide a rounding, agrees with the golden file in every
  tensor to 1e-5, and in every integer, once it rounds a few named near-ties as the golden run did (at most three in
  one file, none in ten files; ``golden_files.py``). The result is the same on every machine.
* *Float32*: our run agrees to 1e-5 as it is, or else with the roundings of the exact run, each of which the float32
  run must itself find to be undecided: its own value within 2e-6 of its row's largest entry from the boundary.
"""

from __future__ import annotations

import pytest
import torch

from tests.golden_agreement.agreement import compare_with, problems
from tests.golden_agreement.conftest import Workshop
from tests.golden_agreement.golden_files import FILES, FOLDER, TEXTS, GoldenFile
from tests.golden_agreement.rounding import Roundings

ANY_FILE = pytest.mark.parametrize("file", FILES, ids=lambda file: file.id)
NUDGED = [file for file in FILES if file.nudges]

STATED = {"mini_b/random_7": 2e-5, "mini_b/random_700": 2e-3, "mini_b/random_130": 0.02, "mini_b/random_1500": 0.3}
"""Logits: what golden/README.md expects of any float32 run; 1e-4 (one flipped cached value) for all other files."""


@ANY_FILE
def test_exact_arithmetic_agrees_in_every_tensor(workshop: Workshop, file: GoldenFile) -> None:
    run = workshop.exact(file)

    assert problems(compare_with(file, run.tensors)) == []


@ANY_FILE
def test_float32_agrees_in_every_tensor_up_to_undecided_roundings(workshop: Workshop, file: GoldenFile) -> None:
    found = problems(compare_with(file, workshop.traced(file, "f32")))
    if found:
        replay = Roundings(replayed=workshop.exact(file).roundings.recorded)
        run = workshop.rounded(file, "f32", replay)
        assert replay.num_wrong == 0, "a rounding of the exact run is not among those that noise may cause"
        assert replay.num_taken_over > 0, f"no rounding differs, and yet: {found}"
        found = problems(compare_with(file, run.tensors))

    assert found == []


@ANY_FILE
def test_logits_of_float32_are_where_the_golden_files_expect_them(workshop: Workshop, file: GoldenFile) -> None:
    found = compare_with(file, workshop.traced(file, "f32"))
    errors = {c.name: c.error for c in found.comparisons}

    assert errors["engram_ids"] == errors["input/ids"] == 0
    assert errors["streams.0"] <= 1e-4
    assert errors["logits"] <= STATED.get(file.id, 1e-4)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.id)
def test_tokens_of_float32_are_the_golden_ones(workshop: Workshop, file: GoldenFile) -> None:
    trace, golden = workshop.traced(file, "f32"), file.tensors("f32")

    for name in ("argmax", "greedy", "draft_tokens", "draft_positions", "draft_anchor_tokens"):
        assert torch.equal(trace[name], golden[name]), name


@pytest.mark.parametrize("file", NUDGED, ids=lambda file: file.id)
def test_every_nudge_is_needed(workshop: Workshop, file: GoldenFile) -> None:
    for index in range(len(file.nudges)):
        others = file.nudges[:index] + file.nudges[index + 1 :]
        run = workshop.rounded(file, "f64", Roundings(nudges=others))
        assert problems(compare_with(file, run.tensors)) != [], file.nudges[index]


def test_no_file_was_forgotten() -> None:
    stored = {f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.safetensors")}

    assert {file.id for file in FILES} == stored - {"mini_b/image_7x5"}, "images come with the vision part"


def test_a_rounding_that_noise_does_not_explain_is_noticed(workshop: Workshop) -> None:
    file = next(file for file in FILES if file.id == "mini_b/random_7")
    recorded = dict(workshop.exact(file).roundings.recorded)
    keys = recorded["window", 0].clone()
    keys[3, 5] += keys[3].abs().max() / 2
    replay = Roundings(replayed={**recorded, ("window", 0): keys})

    run = workshop.rounded(file, "f32", replay)

    assert replay.num_wrong > 0
    assert problems(compare_with(file, run.tensors)) != []
