"""Finding and choosing a backend."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from stevedore.driver import DriverManager
from stevedore.exception import MultipleMatches
from stevedore.extension import Extension

from deepinfer_core.backend.interface import INTERFACE_VERSION, ProbeResult
from deepinfer_core.backend.plugins import GROUP, Plugins
from deepinfer_core.backend.registry import backend_names, describe_backends, load, open_info, select
from deepinfer_core.errors import BackendLoadError, BackendNotFound, CapacityError

FOUND = ProbeResult(usable=True, reason="found one", device_count=1)


@dataclass(kw_only=True)
class FakeInfo:
    name: str
    interface_version: int = INTERFACE_VERSION
    priority: int = 0
    install_hint: str = "pip install its-driver"
    result: ProbeResult | Exception = FOUND
    variables: dict[str, str] = field(default_factory=dict)
    loaded: Any = "a backend"

    def probe(self) -> ProbeResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def prepare_process(self) -> dict[str, str]:
        return self.variables

    def load(self) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def plugins(*infos: FakeInfo, broken: dict[str, Exception] | None = None) -> Plugins:
    """Backends as stevedore would give them, without an installation."""
    failures = broken or {}
    points = [EntryPoint(name, f"package_of_{name}.info:Info", GROUP) for name in (*(i.name for i in infos), *failures)]

    def driver(name: str) -> DriverManager[Any]:
        if name in failures:
            raise failures[name]
        info = next(info for info in infos if info.name == name)
        return DriverManager.make_test_instance(Extension(name, points[0], FakeInfo, info))

    return Plugins(entry_points=lambda: points, driver=driver)


def unusable(reason: str) -> ProbeResult:
    return ProbeResult(usable=False, reason=reason)


def test_names_are_sorted_and_nothing_is_opened() -> None:
    found = plugins(broken={"b": AssertionError("opened"), "a": AssertionError("opened")})

    assert backend_names(found) == ("a", "b")


def test_auto_takes_the_usable_backend_with_the_highest_priority() -> None:
    found = plugins(
        FakeInfo(name="slow", priority=0),
        FakeInfo(name="fast", priority=10),
        FakeInfo(name="absent", priority=99, result=unusable("no card")),
    )

    assert select("auto", found).name == "fast"


def test_auto_says_which_backend_and_why_not_the_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deepinfer")
    found = plugins(FakeInfo(name="slow"), FakeInfo(name="absent", priority=9, result=unusable("no card")))

    select("auto", found)

    assert "backend slow (found one); not absent: no card" in caplog.text


def test_auto_never_takes_a_negative_priority() -> None:
    with pytest.raises(BackendNotFound, match="no accelerator can be used here\n  hollow is usable"):
        select("auto", plugins(FakeInfo(name="hollow", priority=-1)))


def test_auto_asks_for_a_name_when_two_backends_tie() -> None:
    with pytest.raises(BackendNotFound, match="'left' and 'right' have the same priority 5; name one"):
        select("auto", plugins(FakeInfo(name="left", priority=5), FakeInfo(name="right", priority=5)))


def test_auto_warns_of_a_broken_backend_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    found = plugins(FakeInfo(name="slow"), broken={"bad": OSError("libx.so: cannot open")})

    chosen = select("auto", found)

    assert chosen.name == "slow"
    assert "'bad' is installed but does not import: OSError: libx.so" in caplog.text


def test_nvidia_means_cuda() -> None:
    assert select("nvidia", plugins(FakeInfo(name="cuda"))).name == "cuda"


def test_unknown_name_lists_what_was_found_and_the_nearest() -> None:
    found = plugins(FakeInfo(name="cpu"), FakeInfo(name="other", result=unusable("no card")))

    with pytest.raises(BackendNotFound) as caught:
        select("cpuu", found)

    message = str(caught.value)
    assert "no backend named 'cpuu' is installed (found: cpu, other); did you mean 'cpu'?" in message
    assert "other is unusable: no card" in message


@pytest.mark.parametrize("name", ["cuda", "ascend"])
def test_absent_sibling_says_what_to_install(name: str) -> None:
    with pytest.raises(BackendNotFound, match=f"Try: pip install deepinfer-{name} .from a checkout"):
        select(name, plugins(FakeInfo(name="cpu")))


def test_unusable_backend_gives_reason_remedy_and_the_others() -> None:
    found = plugins(FakeInfo(name="cpu"), FakeInfo(name="card", result=unusable("no card in this machine")))

    with pytest.raises(BackendNotFound) as caught:
        select("card", found)

    message = str(caught.value)
    assert "'card' cannot be used here: no card in this machine" in message
    assert "cpu is usable" in message
    assert "To use card: pip install its-driver" in message


@pytest.mark.parametrize(
    ("version", "upgrade"),
    [(INTERFACE_VERSION - 1, "upgrade the backend"), (INTERFACE_VERSION + 1, "upgrade deepinfer-core")],
)
def test_other_interface_version_is_refused_in_words(version: int, upgrade: str) -> None:
    found = plugins(FakeInfo(name="old", interface_version=version))

    with pytest.raises(BackendLoadError, match=f"made for version {version} .*{upgrade}"):
        select("old", found)


def test_entry_point_that_is_no_backend_info_is_refused_in_words() -> None:
    point = EntryPoint("odd", "package.info:Info", GROUP)
    odd = DriverManager.make_test_instance(Extension("odd", point, None, SimpleNamespace(name="odd", probe=None)))

    with pytest.raises(
        BackendLoadError, match="has no interface_version, priority, install_hint, prepare_process, load"
    ):
        open_info("odd", Plugins(entry_points=lambda: [point], driver=lambda name: odd))


@pytest.mark.parametrize("cause", [ImportError("no module x"), OSError("libx.so"), AttributeError("no Info")])
def test_failing_import_is_wrapped_and_chained(cause: Exception) -> None:
    with pytest.raises(BackendLoadError, match="'bad' is installed but does not import") as caught:
        open_info("bad", plugins(broken={"bad": cause}))

    assert caught.value.__cause__ is cause


def test_name_offered_twice_is_refused() -> None:
    twice = plugins(broken={"card": MultipleMatches("two")})

    with pytest.raises(BackendLoadError, match=r"'card' is offered by 1 packages .*uninstall all but one"):
        open_info("card", twice)


def test_states_tell_usable_unusable_and_broken_apart() -> None:
    found = plugins(
        FakeInfo(name="good", priority=3),
        FakeInfo(name="absent", result=unusable("no card")),
        FakeInfo(name="liar", result=ZeroDivisionError("oops")),
        broken={"bad": ImportError("no module x")},
    )

    states = {state.name: state for state in describe_backends(found)}

    assert {name: state.state for name, state in states.items()} == {
        "absent": "unusable", "bad": "broken", "good": "usable", "liar": "broken",
    }  # fmt: skip
    assert states["good"].priority == 3
    assert states["good"].device_count == 1
    assert "its probe failed: ZeroDivisionError: oops" in states["liar"].reason


@pytest.mark.parametrize("cause", [ImportError("no libx"), OSError("libx.so"), RuntimeError("extension")])
def test_backend_that_does_not_load_is_wrapped_with_the_remedy(cause: Exception) -> None:
    with pytest.raises(BackendLoadError, match=r"'card' does not load: .*\nTo use it: pip install") as caught:
        load(FakeInfo(name="card", loaded=cause))

    assert caught.value.__cause__ is cause


def test_our_own_errors_pass_through_load_unchanged() -> None:
    with pytest.raises(CapacityError, match="no memory"):
        load(FakeInfo(name="card", loaded=CapacityError("no memory")))


def test_load_sets_the_variables_of_the_backend_but_not_over_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_USERS", "mine")
    monkeypatch.delenv("VENDOR_NEW", raising=False)

    load(FakeInfo(name="card", variables={"VENDOR_USERS": "theirs", "VENDOR_NEW": "1"}))

    assert os.environ["VENDOR_USERS"] == "mine"
    assert os.environ.pop("VENDOR_NEW") == "1"
