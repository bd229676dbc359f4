"""Every kernel compiles for SM90 and SM100 as it is launched at the released sizes, fits, and spills nothing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="the wheel of triton is for Linux")

import deepinfer_cuda.kernels  # noqa: E402
from deepinfer_cuda.compiling import compile_launch  # noqa: E402
from deepinfer_cuda.launch import Launch, recorded  # noqa: E402
from tests.cuda import released  # noqa: E402


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile anew: a cache of another version must not answer."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def _launches(call: Callable[[], Any]) -> list[Launch]:
    with recorded() as launches:
        call()
    return launches


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("name", released.CALLS)
def test_the_launches_of_a_released_call_compile(name: str, capability: int) -> None:
    launches = _launches(released.CALLS[name])

    compiled = [compile_launch(launch, capability) for launch in launches]

    assert compiled, f"{name} launches nothing"
    assert [problem for one in compiled for problem in one.problems] == []


def test_every_kernel_is_launched_by_a_released_call() -> None:
    launched = {launch.kernel.__name__ for call in released.CALLS.values() for launch in _launches(call)}

    kernels = {name for name in _kernels() if name.endswith("_kernel")}

    assert kernels - launched == set()


def _kernels() -> set[str]:
    """Names of all functions under ``kernels/`` that Triton compiles."""
    found: set[str] = set()
    for module in pkgutil.iter_modules(deepinfer_cuda.kernels.__path__):
        content = importlib.import_module(f"deepinfer_cuda.kernels.{module.name}")
        found |= {n for n, v in inspect.getmembers(content) if isinstance(v, triton.runtime.jit.JITFunction)}
    return found
