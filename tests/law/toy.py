"""A world small enough that the law of its texts is known, and the decode loop that is put to the test in it.

Target, drafts and confidences are tables: pure functions of the prefix. The loop calls the ops of core for everything
that chance decides; :class:`Conduct` says how, and the defaults are what the engine must do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.random import DRAFT, DRAW
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.speculation.accept_prefix import accept_prefix
from deepinfer_core.ops.speculation.confidence import confidence
from deepinfer_core.ops.speculation.markov_logits import markov_logits
from deepinfer_core.ops.speculation.verify import verify
from tests.law.policies import Confidence, Policy

PROMPT_TOKENS = 7
"""Position of the first token of the output."""
NO_TOKEN = -1
"""What fills the places behind the end of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Tables of a target and of its draft module. A context is the number that the last tokens make.

    Attributes:
        target: ``[2, C, V]`` log-probabilities of the next token; in ``target[1]`` the stop token is masked.
        draft: ``[C, gamma, V, V]``: by context of the anchor, number of the draft and the token before it.
        confidence: ``[C, gamma, V]``: likewise, a function of what precedes the draft.
        peeks: Wrong on purpose: the confidence is looked up with the draft itself instead of the token before it.
    """

    target: Tensor
    draft: Tensor
    confidence: Tensor
    peeks: bool = False

    @property
    def num_contexts(self) -> int:
        return self.draft.shape[0]

    @property
    def gamma(self) -> int:
        return self.draft.shape[1]

    @property
    def vocab(self) -> int:
        return self.draft.shape[2]

    def after(self, context: Any, token: Any) -> Any:
        """The context that a token leads to; of numbers or of tensors."""
        return (context * self.vocab + token) % self.num_contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a text ends. The stop token belongs to the text; it is forbidden before ``min_tokens`` tokens."""

    max_tokens: int
    stop: int = -1
    min_tokens: int = 0


def make_world(
    *, vocab: int, gamma: int, seed: int, order: int = 1, temperature: float = 1.0, top_k: int = 0, stop: int = -1
) -> World:
    """A random world: drafts of :func:`markov_logits` that resemble the target, confidences of :func:`confidence`.

    Target and drafts pass ``process_logits`` with the same temperature and top-k, as a request's would.
    """
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=source) * scale

    def process(logits: Tensor) -> Tensor:
        rows = logits.reshape(-1, vocab)
        numbers = torch.full((len(rows),), temperature), torch.full((len(rows),), top_k, dtype=torch.int32)
        return process_logits(rows, *numbers).reshape(logits.shape)

    num_contexts, rank, width = vocab**order, 3, 4
    embedding, head = normal(vocab, rank), normal(vocab, rank, scale=0.7)
    last = torch.arange(num_contexts) % vocab
    logits = markov_logits(normal(num_contexts, vocab, scale=0.8), last.int(), embedding, head)
    masked = logits.index_fill(-1, torch.tensor([stop]), -torch.inf) if stop >= 0 else logits

    base, hidden = normal(num_contexts, gamma, vocab, scale=0.6), normal(num_contexts, gamma, width)
    weight = normal(1, width + rank, scale=1.5)
    previous = torch.arange(vocab, dtype=torch.int32).repeat(num_contexts * gamma)
    draft = markov_logits(_each(base, vocab), previous, embedding, head)
    _, chance = confidence(_each(hidden, vocab), previous, embedding, weight)
    return World(
        target=process(torch.stack((logits, masked))),
        draft=process(draft).reshape(num_contexts, gamma, vocab, vocab),
        confidence=chance.reshape(num_contexts, gamma, vocab),
    )


def _each(rows: Tensor, times: int) -> Tensor:
    return rows.flatten(0, 1).repeat_interleave(times, 0)


class Verifier(Protocol):
    """What ``speculation.verify`` is."""

    def __call__(
        self, target: Tensor, drafts: Tensor, draft_logprobs: Tensor, seeds: Tensor, positions: Tensor, /
    ) -> tuple[Tensor, Tensor, Tensor]: ...


class Drawer(Protocol):
    """What ``sampling.sample`` and ``sampling.race`` are."""

    def __call__(self, logprobs: Tensor, seeds: Tensor, positions: Tensor, /, *, purpose: int) -> Tensor: ...


def keyed_by_anchor(anchor: Tensor, index: int) -> tuple[Tensor, int]:
    """Position and purpose of the random numbers of a draft, as :data:`DRAFT` says."""
    return anchor, DRAFT + index


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How a decode loop goes about it.

    Attributes:
        verify: Judges rows.
        draft_numbers: Position and purpose for the draft with an index after an anchor's position.
        draw: Draws drafts.
        masks_every_row: ``min_tokens`` counts the tokens that precede each row; else those that precede the step.
        stops_in_order: Tokens behind a stop token are dropped; else those of the same block count.
    """

    verify: Verifier = verify
    draft_numbers: Callable[[Tensor, int], tuple[Tensor, int]] = keyed_by_anchor
    draw: Drawer = sample
    masks_every_row: bool = True
    stops_in_order: bool = True


RIGHT = Conduct()


@dataclass(slots=True)
class Block:
    """A proposal for each of N requests: ``tokens`` ``[N, gamma]``, ``logprobs`` ``[N, gamma, V]``, ``contexts``
    ``[N, gamma + 1]`` of the rows, ``confidence`` ``[N, gamma]`` and a ``code`` ``[N]`` that stands for that row."""

    tokens: Tensor
    logprobs: Tensor
    contexts: Tensor
    confidence: Tensor
    code: Tensor


@dataclass(slots=True)
class State:
    """Requests in a row, those of one group next to each other. A group is an engine of its own: its requests share
    a budget of rows. ``code`` stands for the confidences of the proposal before (:class:`Block`)."""

    texts: Tensor
    length: Tensor
    context: Tensor
    done: Tensor
    code: Tensor


FINISHED, UNKNOWN = 0, 1
"""Codes of confidences: all 0 for a request that has ended, all 1 for one of which nothing is known yet."""


def _start(world: World, num_groups: int, num_requests: int, rules: Rules) -> State:
    num = num_groups * num_requests
    return State(
        texts=torch.full((num, rules.max_tokens), NO_TOKEN),
        length=torch.zeros(num, dtype=torch.long),
        context=(torch.arange(num_requests) % world.num_contexts).repeat(num_groups),
        done=torch.zeros(num, dtype=torch.bool),
        code=torch.full((num,), UNKNOWN),
    )


def plain(world: World, seeds: Tensor, rules: Rules, draw: Drawer = sample) -> Tensor:
    """Texts ``[G, R, max_tokens]`` one token at a time: what :class:`Decoder` must be distributed like."""
    num_groups, num_requests = seeds.shape
    state, flat = _start(world, num_groups, num_requests, rules), seeds.reshape(-1)
    for number in range(rules.max_tokens):
        position = torch.full_like(state.context, PROMPT_TOKENS + number).int()
        token = draw(world.target[int(number < rules.min_tokens), state.context], flat, position, purpose=DRAW)
        state.texts[:, number] = torch.where(state.done, NO_TOKEN, token)
        state.context = world.after(state.context, token.long())
        state.done |= token == rules.stop
    return state.texts.reshape(num_groups, num_requests, rules.max_tokens)


@dataclass(slots=True, kw_only=True)
class Decoder:
    """Decodes by drafting and verifying; counts drafts verified and accepted, and steps times live requests."""

    world: World
    policy: Policy
    rules: Rules
    conduct: Conduct = RIGHT
    verified: int = 0
    accepted: int = 0
    steps: int = 0
    confidences: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def texts(self, seeds: Tensor) -> Tensor:
        """Texts ``[G, R, max_tokens]`` for seeds ``[G, R]``; request r of every group begins in context r."""
        num_groups, num_requests = seeds.shape
        made = torch.full((num_groups, num_requests, self.rules.max_tokens), NO_TOKEN)
        running = torch.arange(num_groups)
        state = _start(self.world, num_groups, num_requests, self.rules)
        self.confidences |= {FINISHED: (0.0,) * self.world.gamma, UNKNOWN: (1.0,) * self.world.gamma}
        while len(running):
            self._step(state, seeds[running])
            ended = state.done.reshape(-1, num_requests).all(-1)
            made[running[ended]] = state.texts.reshape(-1, num_requests, self.rules.max_tokens)[ended]
            running, kept = running[~ended], (~ended).repeat_interleave(num_requests)
            state = State(*(getattr(state, name)[kept] for name in State.__dataclass_fields__))
        return made

    def _step(self, state: State, seeds: Tensor) -> None:
        """One engine step: drafts, lengths, verification of all rows, acceptance."""
        position = PROMPT_TOKENS + state.length
        block = propose(self.world, state.context, seeds.reshape(-1), position - 1, self.conduct)
        code = torch.where(state.done, FINISHED, block.code)
        self._remember(code, block.confidence)
        lengths = self._lengths(state, code, seeds.shape[1])
        rows = _rows(lengths)
        accepted, tokens = self._verify(state, block, rows, seeds.reshape(-1))

        flags = torch.zeros(len(lengths), self.world.gamma, dtype=torch.bool)
        flags[rows.request[rows.is_draft], rows.offset[rows.is_draft]] = accepted[rows.is_draft]
        num_accepted, last_row = accept_prefix(flags, rows.first.int())

        self.verified += int(lengths.sum())
        self.accepted += int(num_accepted.sum())
        self.steps += int((~state.done).sum())
        columns = torch.arange(self.world.gamma + 1)
        emitted = tokens[torch.minimum(rows.first.unsqueeze(-1) + columns, last_row.unsqueeze(-1))].long()
        self._append(state, emitted, num_accepted + 1)
        state.code = torch.where(state.done, FINISHED, code)

    def _verify(self, state: State, block: Block, rows: Rows, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Judge every row. Row j of a request follows its first j drafts and judges draft j + 1; its last is fresh."""
        request, offset = rows.request, rows.offset
        index = offset.clamp(max=self.world.gamma - 1)
        before = state.length[request] + (offset if self.conduct.masks_every_row else 0)
        accepted, tokens, _ = self.conduct.verify(
            self.world.target[(before < self.rules.min_tokens).long(), block.contexts[request, offset]],
            torch.where(rows.is_draft, block.tokens[request, index], NO_TOKEN).int(),
            block.logprobs[request, index],
            seeds[request],
            (PROMPT_TOKENS + state.length[request] + offset).int(),
        )
        return accepted, tokens

    def _append(self, state: State, emitted: Tensor, num_emitted: Tensor) -> None:
        """Add tokens one by one, look for the end after each, and drop the rest."""
        was_done = state.done.clone()
        for column in range(emitted.shape[-1]):
            closed = state.done if self.conduct.stops_in_order else was_done | (state.length >= self.rules.max_tokens)
            active = (column < num_emitted) & ~closed
            token = emitted[:, column]
            state.texts[active, state.length[active]] = token[active]
            state.context = torch.where(active, self.world.after(state.context, token), state.context)
            state.length += active
            state.done |= active & ((token == self.rules.stop) | (state.length >= self.rules.max_tokens))

    def _lengths(self, state: State, code: Tensor, num_requests: int) -> Tensor:
        """What the policy says to each group, asked once for every distinct situation."""
        room = self.rules.max_tokens - state.length - 1
        limits = torch.where(state.done, 0, room.clamp(0, self.world.gamma)).reshape(-1, num_requests)

        def budget(codes: tuple[int, ...]) -> tuple[int, ...]:
            return (self.policy.budget(self._look_up(codes)),)

        def split(row: tuple[int, ...]) -> tuple[int, ...]:
            codes, own_limits = row[:num_requests], row[num_requests:-1]
            return self.policy.split(self._look_up(codes), own_limits, row[-1])

        budgets = each_distinct(state.code.reshape(-1, num_requests), budget)
        return each_distinct(torch.cat((code.reshape(-1, num_requests), limits, budgets), -1), split).reshape(-1)

    def _look_up(self, codes: tuple[int, ...]) -> Confidence:
        return tuple(self.confidences[code] for code in codes)

    def _remember(self, code: Tensor, confidence: Tensor) -> None:
        distinct, inverse = code.unique(return_inverse=True)
        example = torch.empty_like(distinct).scatter_(0, inverse, torch.arange(len(code)))
        for number, row in zip(distinct.tolist(), confidence[example].tolist(), strict=True):
            self.confidences.setdefault(number, tuple(row))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a step: of which request, how many rows after its first, and whether a draft is judged there."""

    request: Tensor
    first: Tensor
    offset: Tensor
    is_draft: Tensor


def _rows(lengths: Tensor) -> Rows:
    request = torch.arange(len(lengths)).repeat_interleave(lengths + 1)
    first = (lengths + 1).cumsum(0) - (lengths + 1)
    offset = torch.arange(len(request)) - first[request]
    return Rows(request, first, offset, offset < lengths[request])


def propose(world: World, context: Tensor, seeds: Tensor, anchor: Tensor, conduct: Conduct) -> Block:
    """Draft a block for each request, left to right; each confidence before its draft."""
    contexts, tokens, logprobs, chances = [context], [], [], []
    previous, code = context % world.vocab, context + UNKNOWN + 1
    for index in range(world.gamma):
        logprobs.append(world.draft[context, index, previous])
        position, purpose = conduct.draft_numbers(anchor, index)
        token = conduct.draw(logprobs[-1], seeds, position.int(), purpose=purpose).long()
        chances.append(world.confidence[context, index, token if world.peeks else previous])
        if world.peeks or index < world.gamma - 1:
            code = code + token * world.num_contexts * world.vocab**index
        tokens.append(token)
        contexts.append(world.after(contexts[-1], token))
        previous = token
    return Block(torch.stack(tokens, -1), torch.stack(logprobs, 1), torch.stack(contexts, -1),
                 torch.stack(chances, -1), code)  # fmt: skip


def each_distinct(rows: Tensor, function: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Tensor:
    """A function of small numbers applied to every row of ``[G, n]``, called once for each distinct row."""
    key = torch.zeros(len(rows), dtype=torch.long)
    for column in rows.t():
        key = key * (int(column.max()) + 1) + column
    distinct, inverse = key.unique(return_inverse=True)
    example = torch.empty_like(distinct).scatter_(0, inverse, torch.arange(len(rows)))
    return torch.tensor([function(tuple(row)) for row in rows[example].tolist()])[inverse]
