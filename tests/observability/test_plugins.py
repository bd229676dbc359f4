"""Sinks of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from stevedore.driver import DriverManager
from stevedore.extension import Extension

from deepinfer_core.errors import ConfigError
from deepinfer_core.observability.plugins import GROUP, SinkPlugins
from deepinfer_core.observability.records import EngineInfo
from tests.observability.sample import INFO, Recorder

POINTS = [EntryPoint(name, "nowhere:Sink", GROUP) for name in ("statsd", "kafka", "twice", "twice", "broken")]


def driver(name: str, info: EngineInfo) -> Any:
    """As stevedore would, for a package that is not installed."""
    if name == "broken":
        raise ImportError("no module named nowhere")
    sink = Recorder()
    sink.records.append(info)  # type: ignore[arg-type]
    return DriverManager.make_test_instance(Extension(name, POINTS[0], Recorder, sink))


PLUGINS = SinkPlugins(entry_points=lambda: POINTS, driver=driver)


def test_sinks_are_made_with_the_engine_in_the_order_of_their_names() -> None:
    sinks = PLUGINS.open(["kafka", "statsd"], INFO)

    assert [sink.records for sink in sinks] == [[INFO], [INFO]]


def test_names_are_listed_without_an_import() -> None:
    assert PLUGINS.names() == ("broken", "kafka", "statsd", "twice")


def test_every_problem_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        PLUGINS.open(["statd", "kafka", "twice", "broken"], INFO)

    message = str(caught.value)
    assert "3 problems" in message
    assert "offers 'statd'; installed: broken, kafka, statsd, twice; did you mean 'statsd'?" in message
    assert "'twice' is offered by 2 packages" in message
    assert "'broken' is installed but does not work: ImportError: no module named nowhere" in message


def test_sinks_that_were_made_are_closed_when_another_cannot_be() -> None:
    made: list[Recorder] = []

    def noting(name: str, info: EngineInfo) -> Any:
        manager = driver(name, info)
        made.append(manager.driver)
        return manager

    with pytest.raises(ConfigError):
        SinkPlugins(entry_points=lambda: POINTS, driver=noting).open(["kafka", "nothing"], INFO)

    assert [sink.num_closed for sink in made] == [1]


def test_a_real_entry_point_is_found_by_stevedore(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on the path, as pip would leave it, read by the real driver."""
    folder = tmp_path / "found_sink-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: found-sink\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nfound = found_sink:make\n")
    (tmp_path / "found_sink.py").write_text("def make(info):\n    return ('sink', info)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("stevedore._cache._c._disable_caching", True)

    assert SinkPlugins().open(["found"], INFO) == (("sink", INFO),)
