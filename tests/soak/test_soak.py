"""A minute of random everything (``--soak-seconds`` for more): every request ends once, all memory comes back."""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.engine.opening import open_model
from tests.soak.soak import Soak

if TYPE_CHECKING:
    import pytest

GROWTH = 1.05


def test_everything_at_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    logging.getLogger("deepinfer").setLevel(logging.CRITICAL)  # every planted fault is told with its trace
    seconds = float(request.config.getoption("--soak-seconds"))
    opened = open_model("tiny", accelerator=str(request.config.getoption("--accelerator")))
    soak = Soak(opened, tmp_path, seed=1)

    report = soak.run(seconds)

    page = soak.engine.metrics_page
    soak.engine.close()
    print(f"\n{report.ended}, {report.num_refused} refused, {report.num_discarded} discarded, {report.num_steps} steps")
    print(f"resident MiB: {[size >> 20 for size in report.rss_bytes]}")
    assert set(report.ended) == {"stop", "length", "abort", "timeout", "error"}
    assert min(report.num_refused, report.num_discarded) > 0
    assert page is not None
    counters = soak.engine.scheduler.prefix_cache.counters
    assert min(counters.num_hit_tokens, counters.num_outer_tokens) > 0
    third = len(report.rss_bytes) // 3
    if third >= 15:  # what was loaded for the first time is over by then
        parts = report.rss_bytes[third : 2 * third], report.rss_bytes[-third:]
        before, after = map(statistics.median, parts)
        assert after <= GROWTH * before, f"resident memory went from {before / 2**20:.0f} to {after / 2**20:.0f} MiB"
