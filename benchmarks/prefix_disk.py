"""What a prefix on the disk costs the engine's loop: reading it beside the loop, and what `plan` takes meanwhile.

    python benchmarks/prefix_disk.py [--prompt 100000] [--repeats 5] [--folder FOLDER] [--json FILE]

The scheduler, the tiers and the sizes of payloads are those of an engine of the tiny model; no step runs a model. The
payloads of a prompt are put where each row says, then the prompt arrives, and `plan` is called every 5 ms until it
yields the step, as an idle engine does. For comparison the last column is the time that the loop would stand still if
it read the same payloads itself. Files leave the page cache by `posix_fadvise`, which file systems may ignore.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.config.prefix_cache import PrefixCacheConfig
from deepinfer_core.config.scheduler import SchedulerConfig
from deepinfer_core.engine.machine import describe_machine, describe_versions
from deepinfer_core.engine.opening import open_model
from deepinfer_core.engine.prefix_storage import PrefixStorage
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from deepinfer_core.prefix_cache.keys import CacheIdentity, chain, derive, root_key
from deepinfer_core.prefix_cache.memory_tier import MemoryTier
from deepinfer_core.prefix_cache.tiered_store import TieredStore
from deepinfer_core.runtime.cache_transfer import CacheTransfer
from deepinfer_core.scheduler.scheduler import Scheduler
from deepinfer_core.scheduler.sequence import Sequence

IDENTITY = CacheIdentity(tokenizer="benchmark", model="tiny", numerics="released", cache_layout="tiny")
PLACES = ("in memory", "on the disk, in the page cache", "on the disk, not in the page cache")
MEMORY_BYTES = 2**30
NAP_S = 0.005


class Payloads:
    """All payloads of one prompt, as a folder of the disk tier has them."""

    def __init__(self, transfer: CacheTransfer, num_tokens: int, folder: Path) -> None:
        self.tokens = [5 + (place * 7 + place // 31) % 900 for place in range(num_tokens)]
        keys = chain(root_key(IDENTITY), self.tokens, block_tokens=BLOCK_TOKENS)
        source = random.Random(1)
        self.by_key = {key: source.randbytes(transfer.block_bytes) for key in keys}
        self.by_key[derive(keys[-1], "state")] = source.randbytes(transfer.slot_bytes)
        self.folder = folder
        disk = DiskTier(folder, 2**34, IDENTITY)
        for key, payload in self.by_key.items():
            disk.put(key, payload)
        os.sync()

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.by_key.values()))

    def store(self, place: str) -> TieredStore:
        """A store that finds them there."""
        store = TieredStore(MemoryTier(MEMORY_BYTES), DiskTier(self.folder, 2**34, IDENTITY))
        for key, payload in self.by_key.items() if place == PLACES[0] else ():
            store.put(key, payload)
        for file in self.folder.rglob("*.block") if place != PLACES[0] else ():
            if place == PLACES[1]:
                file.read_bytes()
                continue
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        return store


def one_run(payloads: Payloads, transfer: CacheTransfer, place: str) -> dict[str, float]:
    """Milliseconds of one arrival."""
    store = payloads.store(place)
    storage = PrefixStorage(store, transfer, MEMORY_BYTES)
    num_tokens = len(payloads.tokens) + 2
    scheduler = Scheduler(
        SchedulerConfig(max_model_len=num_tokens + 2 * BLOCK_TOKENS, max_num_seqs=1),
        num_blocks=num_tokens // BLOCK_TOKENS + 3,
        num_state_slots=1,
        prefix_cache=PrefixCacheConfig(mode="exact", num_snapshots=4, max_wait_s=60.0),
    )
    scheduler.prefix_cache.attach(storage)
    prompt = [*payloads.tokens, 7, 8]
    sequence = Sequence(request_id="a", prompt_token_ids=prompt, max_tokens=1, cache_root=root_key(IDENTITY))
    began = time.perf_counter()
    scheduler.add(sequence)
    added = time.perf_counter()
    plans: list[float] = []
    while True:
        before = time.perf_counter()
        plan = scheduler.plan(before)
        after = time.perf_counter()
        plans.append(after - before)
        if plan is not None:
            break
        time.sleep(NAP_S)
    num_hit = scheduler.prefix_cache.counters.num_hit_tokens
    if num_hit != len(payloads.tokens) // BLOCK_TOKENS * BLOCK_TOKENS:
        raise SystemExit(f"{num_hit} tokens were found; all whole blocks should be")
    store.close()
    return {
        "add_ms": 1e3 * (added - began),
        "until_admitted_ms": 1e3 * (after - began),
        "longest_plan_before_ms": 1e3 * max(plans[:-1], default=0.0),
        "admitting_plan_ms": 1e3 * plans[-1],
        "num_plans": float(len(plans)),
    }


def read_in_the_loop(payloads: Payloads, place: str) -> float:
    """Milliseconds in which one thread looks for all of them and reads them."""
    store = payloads.store(place)
    began = time.perf_counter()
    for key in payloads.by_key:
        if not store.contains(key) or store.get(key) is None:
            raise SystemExit("a payload is missing")
    ended = time.perf_counter()
    store.close()
    return 1e3 * (ended - began)


def measure(num_tokens: int, repeats: int, folder: Path) -> dict[str, Any]:
    """All rows of the table."""
    model = open_model("tiny", accelerator="cpu").model
    transfer = CacheTransfer(model.allocate(1, 1), model.device)
    payloads = Payloads(transfer, num_tokens, folder)
    rows: dict[str, dict[str, float]] = {}
    for place in PLACES:
        runs = [one_run(payloads, transfer, place) for _ in range(repeats)]
        rows[place] = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
        rows[place]["longest_plan_before_ms_of_all"] = round(max(run["longest_plan_before_ms"] for run in runs), 1)
        in_loop = [read_in_the_loop(payloads, place) for _ in range(repeats)]
        rows[place]["read_in_the_loop_ms"] = round(statistics.median(in_loop), 1)
    return {
        "what": f"a prompt of {num_tokens} tokens of the tiny model whose prefix is in an outer tier",
        "method": f"median of {repeats} arrivals, wall clock; plan every {1e3 * NAP_S:g} ms until it yields the step",
        "num_payloads": len(payloads.by_key),
        "num_bytes": payloads.num_bytes,
        "places": rows,
        "machine": describe_machine(),
        "versions": describe_versions("cpu"),
    }


def main() -> int:
    """Measure, print, and write the result if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=100_000, help="tokens of the prompt (default 100000)")
    parser.add_argument("--repeats", type=int, default=5, help="arrivals for each row (default 5)")
    parser.add_argument("--folder", type=Path, help="where the disk is; a temporary folder if left out")
    parser.add_argument("--json", type=Path, help="file to write the result to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = measure(arguments.prompt, arguments.repeats, Path(folder))
    print(f"{result['num_payloads']} payloads, {result['num_bytes'] / 1e6:.0f} MB; milliseconds:")
    names = ("add", "longest_plan_before", "admitting_plan", "until_admitted", "read_in_the_loop")
    print(f"{'':<38}" + "".join(f"{name:>21}" for name in names))
    for place, row in result["places"].items():
        print(f"{place:<38}" + "".join(f"{row[f'{name}_ms']:>21}" for name in names))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
