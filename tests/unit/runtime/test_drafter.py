"""One pass of the draft module: greedy and drawn blocks, what is kept of them, and recorded passes with padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from deepinfer_core import SamplingParams
from deepinfer_core.errors import InternalError
from deepinfer_core.runtime.drafter import Drafter
from deepinfer_core.runtime.sampling_tensors import SamplingRow
from tests.engine.drafting import BLOCK, model
from tests.model.driver import Driver

ANCHORS = [(10, 5), (17, 600), (3, 77)]
"""Position and token behind which each sequence drafts."""
PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01),
]


@dataclass
class Setup:
    driver: Driver
    drafter: Drafter

    def propose(self, numbers: list[int], params: list[SamplingParams] = PARAMS) -> Any:
        chosen = [ANCHORS[number] for number in numbers]
        rows = [SamplingRow(params=params[n], seed=n + 2**63, position=ANCHORS[n][0]) for n in numbers]
        tokens, positions = (torch.tensor([pair[i] for pair in chosen], dtype=torch.int32) for i in (1, 0))
        return self.drafter.propose(tokens, positions, [number + 1 for number in numbers], rows)


def setup(num_drafts: int = BLOCK, *, coupled: bool = False, **changes: Any) -> Setup:
    """Three sequences in slots 1 to 3, with a context each."""
    bound = replace(model("cpu", num_drafts, coupled=coupled).model, **changes)
    driver = Driver(bound, num_slots=3)
    sequences = [driver.sequence([5 + (place * 11 + a) % 900 for place in range(a)]) for a, _ in ANCHORS]
    for sequence in sequences:
        driver.feed((sequence, len(sequence.tokens)), prefill=True)
    return Setup(driver, Drafter(bound, driver.caches))


def assert_equal(found: Any, expected: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected.tensors, strict=True))


@pytest.mark.parametrize("num_drafts", [1, 3, BLOCK])
@pytest.mark.parametrize("coupled", [True, False])
def test_greedy_drafts_are_those_of_the_model(num_drafts: int, coupled: bool) -> None:
    made = setup(num_drafts, coupled=coupled)
    greedy = [SamplingParams(temperature=0.0)] * 3
    slots = torch.tensor([1, 2, 3], dtype=torch.int32)

    found = made.propose([0, 1, 2], greedy)
    expected = made.driver.executor.draft(made.driver.model.graph.draft, ANCHORS, slots.tolist())

    assert found.token_ids.shape == (3, num_drafts)
    assert torch.equal(found.token_ids, expected.tokens[:, :num_drafts])
    assert torch.equal(found.confidence, expected.confidence[:, :num_drafts])
    assert torch.equal(found.confidence_logits, expected.confidence_logits[:, :num_drafts])


@pytest.mark.parametrize("coupled", [True, False])
def test_a_block_does_not_depend_on_its_company(coupled: bool) -> None:
    made = setup(coupled=coupled)

    together = made.propose([0, 1, 2])

    for order in ([2, 0], [1], [2, 1, 0]):
        found = made.propose(order)
        for place, number in enumerate(order):
            assert torch.equal(found.token_ids[place], together.token_ids[number])
            assert torch.equal(found.confidence[place], together.confidence[number])


def test_a_pass_for_others_leaves_the_kept_laws_alone() -> None:
    made = setup()
    made.propose([0, 1, 2])
    slots, indices = [1, 1, 3, 2], [0, 4, 2, 1]
    before = made.drafter.distributions(slots, indices).clone()

    made.propose([1])
    made.propose([1], [SamplingParams(temperature=0.0)] * 3)
    after = made.drafter.distributions(slots, indices)

    assert torch.equal(after[:3], before[:3])
    assert before.logsumexp(-1).tolist() == pytest.approx([0.0] * 4, abs=1e-5)
    assert (after[3] > -torch.inf).sum() == 1, "a greedy draft among drawn ones is kept as certain"


def test_drawn_drafts_lie_in_the_kept_law() -> None:
    made = setup()
    found = made.propose([0, 1, 2])

    for number in (0, 2):
        kept = made.drafter.distributions([number + 1] * BLOCK, range(BLOCK))
        chances = kept.gather(-1, found.token_ids[number].long().unsqueeze(-1))
        assert bool((chances > -torch.inf).all())
    assert (made.drafter.distributions([3], [0]) > -torch.inf).sum() <= 50


def test_coupled_drafts_are_drawn_with_the_numbers_of_their_own_positions() -> None:
    """So that a draft behind draft k equals the one that is made when that draft was the last token."""
    made = setup(coupled=True)
    seen: list[list[int]] = []
    ops = made.driver.model.drafting
    assert ops is not None
    assert [ops.draw_offset(k) for k in range(BLOCK)] == [1, 2, 3, 4, 5]
    bound = ops.samples
    try:
        ops.samples = [lambda *a, f=f: (seen.append(a[2].tolist()), f(*a))[1] for f in bound]
        made.propose([0, 1, 2])
    finally:
        ops.samples = bound

    assert seen == [[anchor + 1 + k for anchor, _ in ANCHORS] for k in range(BLOCK)]


def test_drafts_of_rejection_have_numbers_of_their_own() -> None:
    ops = setup().driver.model.drafting
    assert ops is not None
    assert [ops.draw_offset(k) for k in range(BLOCK)] == [0] * BLOCK
    assert len({id(one) for one in ops.samples}) == BLOCK


class EagerGraph:
    """Stands in for a recording: replays by running again, into the same results."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def replay(self) -> None:
        self.work()


def test_recorded_passes_with_padding_give_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = setup()
    made = setup(captures_graphs=False)
    made.drafter._model = replace(made.drafter._model, captures_graphs=True)
    results: list[Any] = []
    run_pass = made.drafter._pass

    def into_the_same_tensors(buffer: Any, filters: Any) -> Any:
        found = run_pass(buffer, filters)
        known = next((old for key, old in results if key == (id(buffer), filters)), None)
        if known is None:
            results.append(((id(buffer), filters), found))
            return found
        for old, new in zip(known.tensors, found.tensors, strict=True):
            old.copy_(new)
        return known

    monkeypatch.setattr(made.drafter, "_pass", into_the_same_tensors)
    monkeypatch.setattr(type(made.drafter._model.device), "capture", lambda _, work: EagerGraph(work))

    for numbers in ([0, 1, 2], [2], [1, 0], [0, 1, 2]):
        assert_equal(made.propose(numbers), eager.propose(numbers))
        own = [number + 1 for number in numbers]
        for index in range(BLOCK):
            kept = made.drafter.distributions(own, [index] * len(own))
            assert torch.equal(kept, eager.drafter.distributions(own, [index] * len(own)))


def test_a_failed_token_counts_as_some_token() -> None:
    made = setup()
    rows = [SamplingRow(params=PARAMS[1], seed=0, position=10)]
    positions = torch.tensor([10], dtype=torch.int32)

    failed = made.drafter.propose(torch.tensor([-1], dtype=torch.int32), positions, [1], rows)
    first = made.drafter.propose(torch.tensor([0], dtype=torch.int32), positions, [1], rows)

    assert_equal(failed, first)


def test_logits_without_values_draft_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = setup()
    monkeypatch.setattr(made.drafter._module, "correct", lambda base, _: base * torch.nan)

    assert made.propose([0, 1, 2]).token_ids.eq(-1).all()


def test_a_model_without_drafts_has_no_drafter() -> None:
    bound = model("cpu", 0).model

    with pytest.raises(InternalError, match="without drafts"):
        Drafter(bound, bound.allocate(1, 1))
