"""Several processes on one folder, one of them killed: nobody ever reads a byte that was not put under its key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deepinfer_core.prefix_cache.block_file import HEADER_BYTES
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from tests.architecture.source_tree import ROOT
from tests.prefix_cache.builders import IDENTITY, key, payload

CAPACITY = 40 * (HEADER_BYTES + 200)

WORKER = """
import random, sys
from pathlib import Path
from deepinfer_core.prefix_cache.disk_tier import DiskTier
from tests.prefix_cache.builders import IDENTITY, key, payload

folder, seed, capacity, num_rounds = Path(sys.argv[1]), *map(int, sys.argv[2:])
random.seed(seed)
tier = DiskTier(folder, capacity, IDENTITY)
print("started", flush=True)
for _ in range(num_rounds):
    number = random.randrange(80)
    if random.random() < 0.5:
        tier.put(key(number), payload(number))
    elif (found := tier.get(key(number))) not in {None, payload(number)}:
        sys.exit(f"key {number} has {found!r}")
statistics = tier.statistics()
print(statistics.num_hits, statistics.num_errors, statistics.is_writable, flush=True)
"""


def start(folder: Path, seed: int, num_rounds: int) -> subprocess.Popen[str]:
    arguments = [str(folder), str(seed), str(CAPACITY), str(num_rounds)]
    process = subprocess.Popen([sys.executable, "-c", WORKER, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_processes_that_write_and_evict_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    processes = [start(tmp_path, seed, 2000) for seed in range(3)]

    reports = [process.communicate()[0].split() for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [report[1:] for report in reports] == [["0", "True"]] * 3
    assert all(int(report[0]) > 0 for report in reports)
    used_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert used_bytes <= CAPACITY * (1 + 3 / 8)


def test_payload_of_another_process_is_a_hit(tmp_path: Path) -> None:
    mine, theirs = DiskTier(tmp_path, 1000, IDENTITY), DiskTier(tmp_path, 1000, IDENTITY)

    theirs.put(key(0), b"from next door")

    assert mine.get(key(0)) == b"from next door"
    assert mine.statistics().num_entries == 1


def test_what_others_wrote_is_noticed_after_an_eighth_of_the_capacity(tmp_path: Path) -> None:
    size = HEADER_BYTES + 200
    mine, theirs = DiskTier(tmp_path, 40 * size, IDENTITY), DiskTier(tmp_path, 40 * size, IDENTITY)
    for number in range(40):
        theirs.put(key(number), payload(number, 200))

    for number in range(100, 106):
        mine.put(key(number), payload(number, 200))

    assert (mine.statistics().num_entries, mine.statistics().num_evictions) == (40, 6)
    assert not any(mine.contains(key(number)) for number in range(6))


def test_process_that_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    for seed in range(4):
        process = start(tmp_path, seed, 1_000_000)
        tier = DiskTier(tmp_path, CAPACITY, IDENTITY)
        while tier.get(key(seed)) is None:  # it is at work
            pass
        process.kill()
        process.communicate()

    tier = DiskTier(tmp_path, CAPACITY, IDENTITY)
    found = {number: tier.get(key(number)) for number in range(80)}

    assert {number for number, got in found.items() if got is not None} != set()
    assert all(got == payload(number) for number, got in found.items() if got is not None)
    assert tier.statistics().num_errors == 0
