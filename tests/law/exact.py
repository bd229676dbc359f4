"""The law of the first tokens of two requests by enumeration of everything that can happen, without chance.

A *kernel* says what becomes of one row: :func:`formula` by the rule of the paper, :class:`OpKernel` by running
``speculation.verify`` on every combination of a grid of random numbers that is fine enough to be exact.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from deepinfer_core.ops.sampling.random import ACCEPT
from deepinfer_core.ops.speculation.verify import verify
from tests.law.policies import Confidence, Policy
from tests.law.toy import NO_TOKEN, Rules, World

Chances = tuple[float, ...]
Text = tuple[int, ...]
Law = dict[Text, float]
JointLaw = dict[tuple[Text, ...], float]
Kernel = Callable[[Chances, Chances, int], tuple[float, Chances]]
"""Target, draft's distribution and draft (-1: none) to the chance of acceptance and the mass of each replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A :class:`~tests.law.toy.World` as plain numbers: chances in float64 that sum to one."""

    target: list[list[Chances]]
    draft: list[list[list[Chances]]]
    confidence: list[list[list[float]]]
    peeks: bool

    @property
    def gamma(self) -> int:
        return len(self.draft[0])

    @property
    def vocab(self) -> int:
        return len(self.draft[0][0])

    def after(self, context: int, token: int) -> int:
        return (context * self.vocab + token) % len(self.draft)


def tables(world: World, denominator: int = 0) -> Tables:
    """Numbers of a world; with a denominator its chances are rounded to multiples of one over it."""
    return Tables(
        target=_chances(world.target, denominator),
        draft=_chances(world.draft, denominator),
        confidence=world.confidence.tolist(),
        peeks=world.peeks,
    )


def _chances(logprobs: Tensor, denominator: int) -> list:
    chances = logprobs.double().exp()
    if denominator:
        chances = (chances * denominator).round().clamp(min=0)
        largest = chances.argmax(-1, keepdim=True)
        chances = chances.scatter_add(-1, largest, denominator - chances.sum(-1, keepdim=True))
    nested = (chances / chances.sum(-1, keepdim=True)).tolist()
    return _tuples(nested)


def _tuples(nested: list) -> list:
    return tuple(nested) if isinstance(nested[0], float) else [_tuples(item) for item in nested]


@cache
def formula(target: Chances, draft: Chances, token: int) -> tuple[float, Chances]:
    """Accept with ``min(1, p / q)``, replace by ``max(p - q, 0)`` (spec dspark 3.1)."""
    if token < 0:
        return 0.0, target
    accept = min(1.0, target[token] / draft[token]) if draft[token] else 0.0
    residual = [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)]
    return accept, _shares(residual if sum(residual) > 1e-12 else target, 1.0 - accept)


def without_subtracting(target: Chances, draft: Chances, token: int) -> tuple[float, Chances]:
    """Wrong: a rejected draft is replaced by a draw from the target itself."""
    accept, _ = formula(target, draft, token)
    return accept, _shares(target, 1.0 - accept)


def without_coin(target: Chances, draft: Chances, token: int) -> tuple[float, Chances]:
    """Wrong: a draft is accepted where the target likes it at least as well, and never otherwise."""
    accept = float(token >= 0 and target[token] >= draft[token])
    _, masses = formula(target, draft, token)
    return accept, _shares(masses if sum(masses) else target, 1.0 - accept)


def _shares(weights: list[float] | Chances, mass: float) -> Chances:
    total = sum(weights)
    return tuple(mass * weight / total for weight in weights)


class OpKernel:
    """``speculation.verify`` integrated over its random numbers, exactly for chances that are multiples of 1/D.

    The coin decides by the ratio of two numerators and the replacement by sums of numerators over their total, so
    midpoints of a grid of ``lcm(1..D)`` cells hit each outcome as often as its chance says. Coin and replacement run
    through all combinations.
    """

    def __init__(self, denominator: int) -> None:
        self.cells = math.lcm(*range(1, denominator + 1))
        self._known: dict[tuple[Chances, Chances, int], tuple[float, Chances]] = {}

    def random_words(self, seeds: Tensor, positions: Tensor, purpose: Tensor | int) -> Tensor:
        """Stands in for the random words: the position of a row is the number of its combination."""
        del seeds
        coin, other = positions.long() // self.cells, positions.long() % self.cells
        cell = torch.where(torch.as_tensor(purpose) == ACCEPT, coin, other)
        word = ((cell.double() + 0.5) / self.cells * 2.0**32).long()
        return torch.stack((word, *[torch.zeros_like(word)] * 3))

    def __call__(self, target: Chances, draft: Chances, token: int) -> tuple[float, Chances]:
        key = target, draft, token
        if key not in self._known:
            self._known[key] = self._integrate(*key)
        return self._known[key]

    def _integrate(self, target: Chances, draft: Chances, token: int) -> tuple[float, Chances]:
        num = self.cells**2
        rows = [torch.tensor(chances, dtype=torch.float64).log().float().expand(num, -1) for chances in (target, draft)]
        positions = torch.arange(num, dtype=torch.int32)
        drafts = torch.full((num,), token, dtype=torch.int32)
        accepted, tokens, _ = verify(rows[0], drafts, rows[1], torch.zeros(num, dtype=torch.long), positions)
        replaced = torch.bincount(tokens[~accepted], minlength=len(target)).double() / num
        return float(accepted.double().mean()), tuple(replaced.tolist())


def plain_law(world: Tables, context: int, rules: Rules, horizon: int) -> Law:
    """Law of the first tokens of one request when they are drawn one by one."""
    law: Law = {(): 1.0}
    for number in range(horizon):
        longer: Law = defaultdict(float)
        for text, chance in law.items():
            if _ended(text, rules):
                longer[text] += chance
                continue
            here = _context(world, context, text)
            for token, p in enumerate(world.target[number < rules.min_tokens][here]):
                longer[*text, token] += chance * p
        law = longer
    return {text: chance for text, chance in law.items() if chance > 0}


def product(laws: list[Law]) -> JointLaw:
    """Joint law of requests that have nothing to do with each other."""
    return {
        tuple(text for text, _ in pairs): math.prod(chance for _, chance in pairs)
        for pairs in itertools.product(*(law.items() for law in laws))
    }


def distance(law: JointLaw, other: JointLaw) -> float:
    """Largest difference between the chances of an outcome."""
    return max(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys())


@dataclass(kw_only=True)
class Enumeration:
    """All that can happen to ``num_requests`` requests of one engine until each has ``horizon`` tokens or ended.

    Attributes:
        limited: Whether no draft is verified that ``rules.max_tokens`` leaves no room for. Either way counts.
    """

    world: Tables
    policy: Policy
    rules: Rules
    horizon: int
    kernel: Kernel = formula
    num_requests: int = 2
    limited: bool = True

    def __post_init__(self) -> None:
        self._blocks = lru_cache(maxsize=None)(self._all_blocks)
        self._emissions = lru_cache(maxsize=None)(self._all_emissions)

    def law(self) -> JointLaw:
        """Joint law of the first tokens. States are visited by total length: every step adds a token."""
        unknown = ((1.0,) * self.world.gamma,) * self.num_requests
        waiting: dict[int, dict[tuple[tuple[Text, ...], Confidence], float]] = defaultdict(lambda: defaultdict(float))
        waiting[0][((),) * self.num_requests, unknown] = 1.0
        final: JointLaw = defaultdict(float)
        for total in range(self.num_requests * self.horizon + 1):
            for (texts, older), chance in waiting.pop(total, {}).items():
                if all(map(self._over, texts)):
                    final[texts] += chance
                    continue
                for after, proposed, share in self._steps(texts, older):
                    kept = proposed if self.policy.looks_back else unknown
                    waiting[sum(map(len, after))][after, kept] += chance * share
        return dict(final)

    def error(self) -> float:
        """Distance of this law from that of plain decoding."""
        laws = [plain_law(self.world, r, self.rules, self.horizon) for r in range(self.num_requests)]
        return distance(self.law(), product(laws))

    def _steps(
        self, texts: tuple[Text, ...], older: Confidence
    ) -> Iterator[tuple[tuple[Text, ...], Confidence, float]]:
        budget = self.policy.budget(older)
        limits = tuple(map(self._limit, texts))
        for blocks in itertools.product(*(self._blocks(r, text) for r, text in enumerate(texts))):
            confidence = tuple(block.confidence for block in blocks)
            lengths = self.policy.split(confidence, limits, budget)
            outcomes = [self._emissions(r, texts[r], blocks[r], lengths[r]).items() for r in range(len(texts))]
            for pairs in itertools.product(*outcomes):
                chances = [block.chance for block in blocks] + [chance for _, chance in pairs]
                yield tuple(text for text, _ in pairs), confidence, math.prod(chances)

    def _over(self, text: Text) -> bool:
        return len(text) >= self.horizon or _ended(text, self.rules)

    def _limit(self, text: Text) -> int:
        room = self.rules.max_tokens - len(text) - 1 if self.limited else self.world.gamma
        return 0 if self._over(text) else min(room, self.world.gamma)

    def _all_blocks(self, request: int, text: Text) -> list[Proposed]:
        """Every block that may be drafted behind a text."""
        world, context = self.world, _context(self.world, request, text)
        blocks = [Proposed((), (), (), 1.0)]
        if self._over(text):
            return [Proposed((), (), (0.0,) * world.gamma, 1.0)]
        for index in range(world.gamma):
            blocks = [
                Proposed(
                    (*block.tokens, token),
                    (*block.draft, q),
                    (*block.confidence, world.confidence[context][index][token if world.peeks else previous]),
                    block.chance * q[token],
                )
                for block in blocks
                for previous in [block.tokens[-1] if block.tokens else context % world.vocab]
                for q in [world.draft[context][index][previous]]
                for token in range(world.vocab)
                if q[token] > 0
            ]
        return blocks

    def _all_emissions(self, request: int, text: Text, block: Proposed, length: int) -> Law:
        """The text after a step that verifies so many drafts of a block."""
        if self._over(text):
            return {text: 1.0}
        law: Law = defaultdict(float)
        chance, longer = 1.0, text
        for token, draft in [*zip(block.tokens[:length], block.draft, strict=False), (NO_TOKEN, ())]:
            target = self.world.target[len(longer) < self.rules.min_tokens][_context(self.world, request, longer)]
            accept, masses = self.kernel(target, draft or target, token)
            for replacement, mass in enumerate(masses):
                if mass > 0:
                    law[self._cut((*longer, replacement), len(text))] += chance * mass
            chance, longer = chance * accept, (*longer, token)
            if chance == 0:
                break
        return dict(law)

    def _cut(self, text: Text, start: int) -> Text:
        """Drop what comes behind the end."""
        for length in range(start + 1, len(text)):
            if self._over(text[:length]):
                return text[:length]
        return text


@dataclass(frozen=True, slots=True)
class Proposed:
    """A block that may be drafted, and the chance of it."""

    tokens: Text
    draft: tuple[Chances, ...]
    confidence: Chances
    chance: float


def _ended(text: Text, rules: Rules) -> bool:
    return len(text) >= rules.max_tokens or (bool(text) and text[-1] == rules.stop)


def _context(world: Tables, context: int, text: Text) -> int:
    for token in text:
        context = world.after(context, token)
    return context
