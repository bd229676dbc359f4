"""What the tiny model's draft module says and what becomes of it, block by block, for simulated acceptance."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.launched_step import EntryTokens
from deepinfer_core.engine.opening import OpenedModel
from deepinfer_core.engine.request import Request
from deepinfer_core.scheduler.step_plan import SequencePlan

HELDOUT = Path(__file__).resolve().parent.parent / "tests/data/eval_heldout.jsonl"
MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Block:
    """One block of drafts that was verified whole.

    Attributes:
        task: Of the prompt.
        logits: Of the confidence of each draft as the planner sees it: lowest behind a draft that ends the text.
        num_accepted: Drafts that became output; a block in which an answer ends counts as one that is rejected there.
    """

    task: str
    logits: tuple[float, ...]
    num_accepted: int


def heldout() -> list[dict[str, str]]:
    """The held-out prompts."""
    return [json.loads(line) for line in HELDOUT.read_text(encoding="utf-8").splitlines()]


def record_blocks(opened: OpenedModel, *, temperature: float, repeats: int = 1) -> list[Block]:
    """Run the held-out prompts with every draft verified.

    Args:
        opened: The tiny model, bound for drafts of fixed length.
        temperature: Of sampling.
        repeats: Runs of each prompt, with other seeds.

    Returns:
        All blocks.
    """
    items = heldout() * repeats
    engine = Engine(opened, EngineConfig(model="tiny", max_num_seqs=16, speculative_config={"verification": "fixed"}))
    log = engine.draft_log
    if log is None:
        raise SystemExit("the model was opened without drafts")
    found: list[Block] = []
    note = log.note

    def noted(request: Request, entry: SequencePlan, tokens: EntryTokens, num_kept: int) -> None:
        if tokens.num_verified == len(entry.sequence.proposal.token_ids) > 0:
            task = items[int(request.request_id)]["task"]
            logits = tuple(map(_logit, entry.sequence.proposal.confidence))
            found.append(Block(task, logits, min(tokens.num_accepted, num_kept)))
        note(request, entry, tokens, num_kept)

    log.note = noted  # type: ignore[method-assign]
    answer_all(engine, opened, items, temperature)
    return found


def answer_all(engine: Engine, opened: OpenedModel, items: Sequence[Mapping[str, str]], temperature: float) -> None:
    """Run prompts to their ends, as requests 0, 1 and so on with these seeds, and close the engine."""
    for number, item in enumerate(items):
        params = SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS, seed=number)
        engine.add(str(number), opened.tokenizer.encode(item["prompt"]), params)  # type: ignore[union-attr]
    for _ in engine.run():
        pass
    engine.close()


def _logit(chance: float) -> float:
    nearest = min(max(chance, 1e-9), 1.0 - 1e-9)
    return math.log(nearest / (1.0 - nearest))


def write_blocks(blocks: Sequence[Block], file: Path) -> None:
    """As JSON lines."""
    file.write_text("".join(json.dumps(asdict(block)) + "\n" for block in blocks), encoding="utf-8")


def read_blocks(file: Path) -> list[Block]:
    """What :func:`write_blocks` wrote."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [Block(row["task"], tuple(row["logits"]), row["num_accepted"]) for row in rows]


def by_task(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    """Blocks of each task."""
    found: defaultdict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        found[block.task].append(block)
    return dict(found)
