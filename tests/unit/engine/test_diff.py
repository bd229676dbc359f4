"""Comparing traces: order, alignment with golden files, ties, and what the first difference says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer_core.engine.diff import Comparison, TraceDifference, bounds_of, compare_traces
from deepinfer_core.engine.trace_rows import model_order

LENGTH, HIDDEN, VOCABULARY, BLOCK = 40, 6, 9, 3


def ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def trace() -> dict[str, Tensor]:
    """A small trace with a tensor of every kind."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    logits, draft_logits = normal(LENGTH, VOCABULARY), normal(2, BLOCK, VOCABULARY)
    return {
        "input/ids": torch.arange(LENGTH, dtype=torch.int32),
        "engram_ids": torch.arange(LENGTH * 4, dtype=torch.int32).reshape(LENGTH, 2, 2),
        "attn_out.0": normal(LENGTH, HIDDEN),
        "router_ids.0": ints([[5, 2, 7]]).repeat(LENGTH, 1),
        "router_weights.0": torch.tensor([[0.5, 0.3, 0.2]]).repeat(LENGTH, 1),
        "compressed_kv.1": normal(LENGTH, HIDDEN),
        "index_scores.1": normal(LENGTH, LENGTH),
        "topk.1": ints([[1, 4, 8, -1]]).repeat(LENGTH, 1),
        "attn_out.1": normal(LENGTH, HIDDEN),
        "attn_out.10": normal(LENGTH, HIDDEN),
        "logits": logits,
        "argmax": logits.argmax(-1).int(),
        "draft_tokens": draft_logits.argmax(-1).int(),
        "draft_logits": draft_logits,
        "draft_confidence": normal(2, BLOCK).sigmoid(),
        "greedy": ints([3, 4, 5]),
    }


def compare(left: dict[str, Tensor], right: dict[str, Tensor], allowed: float = 1e-5) -> TraceDifference:
    return compare_traces(left, right, lambda name: allowed)


def changed(name: str, where: tuple[int, ...], value: float) -> dict[str, Tensor]:
    """The trace with one element of one tensor replaced."""
    other = trace()
    other[name] = other[name].clone()
    other[name][where] = value
    return other


def only_difference(left: dict[str, Tensor], right: dict[str, Tensor], allowed: float = 1e-5) -> Comparison:
    different = compare(left, right, allowed).different
    assert len(different) == 1, different
    return different[0]


def test_a_trace_equals_itself() -> None:
    found = compare(trace(), trace())

    assert found.different == ()
    assert {c.name for c in found.comparisons} == set(trace())
    assert (found.only_left, found.only_right) == ((), ())


def test_tensors_come_in_the_order_of_the_model() -> None:
    names = [
        "greedy",
        "logits",
        "attn_out.10",
        "topk.2",
        "attn_out.2",
        "engram_ids",
        "index_scores.2",
        "mine",
        "input/ids",
    ]

    assert sorted(names, key=model_order) == [
        "input/ids", "engram_ids", "index_scores.2", "topk.2", "attn_out.2", "attn_out.10", "logits", "greedy", "mine",
    ]  # fmt: skip


def test_the_first_difference_has_place_values_and_size() -> None:
    other = changed("attn_out.1", (7, 2), 100.0)
    other["attn_out.10"] = other["attn_out.10"] + 1.0

    first, second = compare(trace(), other).different

    assert (first.name, second.name) == ("attn_out.1", "attn_out.10")
    assert first.first is not None
    assert first.first.place == "position 7, index 2"
    assert float(first.first.left) == pytest.approx(float(trace()["attn_out.1"][7, 2]))
    assert first.first.right == "100"
    assert first.error == pytest.approx(1.0, abs=0.05)


def test_the_error_is_relative_to_the_largest_entry() -> None:
    left = {"logits": torch.tensor([[1.0, 1000.0]])}
    right = {"logits": torch.tensor([[1.005, 1000.0]])}

    assert compare(left, right).different == ()
    assert compare(left, right, 1e-6).different[0].error == pytest.approx(5e-6, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_on_one_side_differs_under_any_tolerance(value: float) -> None:
    found = only_difference(trace(), changed("attn_out.0", (0, 0), value), allowed=1e9)

    assert found.error == float("inf")


def test_the_same_infinities_agree() -> None:
    other = changed("index_scores.1", (3, 3), -float("inf"))

    assert compare(other, other).different == ()


def test_last_positions_of_a_golden_file_are_compared_with_the_end_of_a_trace() -> None:
    golden = {name: t[-4:] for name, t in trace().items() if name in ("attn_out.0", "topk.1", "router_ids.0", "logits")}
    golden |= {"input/ids": trace()["input/ids"], "index_scores.1": trace()["index_scores.1"][-1:]}
    golden["attn_out.0"] = golden["attn_out.0"].clone()
    golden["attn_out.0"][1, 5] = 50.0

    found = only_difference(trace(), golden)

    assert found.first is not None
    assert found.first.place == f"position {LENGTH - 3}, index 5"


def test_first_and_last_entries_of_a_golden_file_are_compared_with_both_ends() -> None:
    whole = trace()["compressed_kv.1"]
    golden = {"compressed_kv.1": torch.cat((whole[:16], whole[-16:]))}
    assert compare(trace(), golden).different == ()
    golden["compressed_kv.1"][16, 0] += 1.0

    found = only_difference(trace(), golden)

    assert found.first is not None
    assert found.first.place == f"entry {LENGTH - 16}, index 0"


def test_greedy_tokens_are_compared_as_far_as_both_go() -> None:
    assert compare(trace(), {"greedy": ints([3, 4])}).different == ()
    assert only_difference(trace(), {"greedy": ints([3, 9])}).first is not None


@pytest.mark.parametrize("name", ["input/ids", "argmax", "engram_ids", "draft_tokens", "compressed_kv.1"])
def test_other_tensors_of_another_length_differ(name: str) -> None:
    found = only_difference(trace(), {name: trace()[name][1:]})

    assert found.name == name
    assert found.first is not None
    assert found.first.left == f"shape {tuple(trace()[name].shape)}"


def test_tensors_of_another_width_differ() -> None:
    found = only_difference(trace(), {"attn_out.0": trace()["attn_out.0"][:, :-1]})

    assert found.error == float("inf")


def test_names_in_one_trace_only_are_told() -> None:
    left, right = trace(), trace()
    del left["greedy"], right["engram_ids"]

    found = compare(left, right)

    assert (found.only_left, found.only_right) == (("engram_ids",), ("greedy",))


def test_experts_in_another_order_are_the_same_experts() -> None:
    other = trace()
    order = torch.tensor([2, 0, 1])
    other |= {name: other[name][:, order] for name in ("router_ids.0", "router_weights.0")}

    assert compare(trace(), other).different == ()


def test_another_expert_is_a_difference_with_both_names() -> None:
    found = only_difference(trace(), changed("router_ids.0", (6, 1), 3))

    assert found.first is not None
    assert (found.first.place, found.first.left, found.first.right) == ("position 6", "2", "3")


def with_scores(*scores: float, selected: list[int]) -> dict[str, Tensor]:
    return {"index_scores.1": torch.tensor([scores]), "topk.1": ints([selected])}


def test_another_selection_among_equal_scores_is_a_tie() -> None:
    left = with_scores(1.0, 0.5, 0.5, -1.0, selected=[0, 1])
    right = with_scores(1.0, 0.5, 0.5, -1.0, selected=[0, 2])

    found = compare(left, right)

    assert found.different == ()
    assert [c.num_ties for c in found.comparisons] == [0, 1]


def test_a_selection_that_leaves_out_a_higher_score_differs() -> None:
    left = with_scores(1.0, 0.5, 0.5, -1.0, selected=[0, 1])
    right = with_scores(1.0, 0.5, 0.5, -1.0, selected=[0, 3])

    found = only_difference(left, right)

    assert found.first is not None
    assert (found.first.left, found.first.right) == ("1", "3")


def test_a_smaller_selection_differs_even_if_all_scores_are_equal() -> None:
    left = with_scores(0.5, 0.5, 0.5, selected=[0, 1])
    right = with_scores(0.5, 0.5, 0.5, selected=[0, -1])

    assert only_difference(left, right).name == "topk.1"


def test_a_selection_without_recorded_scores_has_no_excuse() -> None:
    left, right = with_scores(0.5, 0.5, selected=[0]), with_scores(0.5, 0.5, selected=[1])
    del right["index_scores.1"]

    assert only_difference(left, right).name == "topk.1"


@pytest.mark.parametrize("selected", [[0, 4], [0, 10**6]])
def test_an_entry_that_does_not_exist_is_a_difference(selected: list[int]) -> None:
    scores = (0.5, 0.5, 0.5, 0.5)

    assert only_difference(with_scores(*scores, selected=[0, 1]), with_scores(*scores, selected=selected)).error == 1


def test_a_token_that_does_not_exist_is_a_difference() -> None:
    logits = torch.zeros(1, 3)

    assert only_difference({"logits": logits, "argmax": ints([0])}, {"logits": logits, "argmax": ints([3])}).error == 1


def test_another_token_among_equal_logits_is_a_tie_and_otherwise_a_difference() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [0.0, 1.0, 2.0]])
    left = {"logits": logits, "argmax": ints([1, 2])}

    assert compare(left, {"logits": logits, "argmax": ints([2, 2])}).different == ()
    assert only_difference(left, {"logits": logits, "argmax": ints([2, 1])}).error == 1


def test_what_follows_another_drafted_token_is_not_compared() -> None:
    left, right = trace(), trace()
    logits = torch.zeros(2, BLOCK, VOCABULARY)
    logits[..., :2] = 1.0
    left |= {"draft_logits": logits, "draft_tokens": ints([[0, 0, 0], [0, 0, 0]])}
    right |= {"draft_logits": logits.clone(), "draft_tokens": ints([[0, 1, 5], [0, 0, 0]])}
    right["draft_logits"][0, 2] = 7.0
    right["draft_confidence"] = left["draft_confidence"].clone()
    right["draft_confidence"][0, 2] = 7.0
    assert compare(left, right).different == ()

    right["draft_logits"][0, 1, 1] = 7.0

    assert [c.name for c in compare(left, right).different] == ["draft_tokens", "draft_logits"]


def test_router_rows_of_a_single_position_have_no_axis_of_positions() -> None:
    left = {"router_ids.0": ints([1, 2]), "router_weights.0": torch.tensor([0.6, 0.4])}
    right = {"router_ids.0": ints([2, 1]), "router_weights.0": torch.tensor([0.4, 0.6])}

    assert compare(left, right).different == ()


def test_the_coarser_arithmetic_decides_the_tolerance() -> None:
    for names in (("f64", "f32"), ("f32", "unheard of"), ("",)):
        assert bounds_of(*names)("logits") == bounds_of(*names)("compressed_kv.1") == 1e-5
    assert bounds_of("f32", "released")("logits") == bounds_of("bf16")("logits") == 0.05


def test_in_16_bits_a_cached_value_may_be_one_code_apart() -> None:
    values = torch.tensor([[6.0, 4.0], [1.0, 3.0]])
    left, one, two = ({"index_keys.1": t} for t in (values, values.clone(), values.clone()))
    one["index_keys.1"][0, 1], two["index_keys.1"][0, 1] = 6.0, 1.5

    assert compare_traces(left, one, bounds_of("released")).different == ()
    assert compare_traces(left, two, bounds_of("released")).different != ()
    assert compare_traces(left, one, bounds_of("f32")).different != ()
