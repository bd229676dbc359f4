"""Every check of the project, by name; continuous integration runs the same ones.

All sessions use the environment that nox itself runs in, so that torch is installed once (docs/contributing.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

import nox

ACCELERATORS = ("cpu",)
"""What the conformance session tries by default; give others as arguments, e.g. ``nox -s conformance -- cuda``."""
DISTRIBUTIONS = (".", "deepinfer_cuda", "deepinfer_ascend")
PACKAGES = ("deepinfer_core", "deepinfer_cuda", "deepinfer_ascend")
WORKERS = 2
"""Processes of one test run; each computes with one thread."""

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and import contracts."""
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Static types of what is shipped."""
    session.run("pyright", "--pythonpath", sys.executable)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test that needs no accelerator, the conformance suites on the CPU included, but for the slow ones."""
    words = ("-m", "not slow", *session.posargs)
    # Files keep their order: by number of tests, long files with few of them would come last and find one worker idle.
    workers = ("-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder")
    session.run("python", "-m", "pytest", *workers, "--durations", "25", *words, env={"OMP_NUM_THREADS": "1"})


@nox.session
def interpreter(session: nox.Session) -> None:
    """CUDA kernels in Triton's interpreter: the cases of every native op; arguments name further suites."""
    suites = [f"tests/conformance/test_{name}.py" for name in ("ops", *session.posargs)]
    environment = {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    workers = ("-n", str(WORKERS))
    session.run("python", "-m", "pytest", *workers, *suites, "--accelerator", "cuda", "-k", "native", env=environment)


@nox.session
def soak(session: nox.Session) -> None:
    """Ten minutes of random everything against one engine; for every night."""
    session.run("python", "-m", "pytest", "-s", "tests/soak", "--soak-seconds", "600", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that take more than ten seconds each: wide sweeps and long golden prompts."""
    session.run("python", "-m", "pytest", "-m", "slow", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """The conformance kit on the accelerators given, with a report of each."""
    for accelerator in session.posargs or ACCELERATORS:
        session.run("deepinfer", "conformance", "--accelerator", accelerator)


@nox.session
def build(session: nox.Session) -> None:
    """Wheels of the three distributions, made from their source archives, installed and used away from the checkout."""
    folder = Path(session.create_tmp()).resolve()
    for distribution in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(folder), distribution)
    site = folder / "site"
    wheels = sorted(str(wheel) for wheel in folder.glob("*.whl"))
    session.run("python", "-m", "pip", "install", "--no-deps", "--upgrade", "--target", str(site), *wheels)
    session.chdir(folder)
    for words in (["--version"], ["backends"], ["check", "tiny"]):
        code = "import sys; from deepinfer_core.cli.main import main; sys.exit(main())"
        session.run("python", "-c", code, *words, env={"PYTHONPATH": str(site)})


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation: generated pages up to date, links, and examples that print what the pages say."""
    session.run("python", "docs/generate.py", "--check")
    session.run("python", "-m", "pytest", "tests/architecture/test_docs.py", "tests/docs", env={"OMP_NUM_THREADS": "1"})


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmark named first in the arguments, e.g. ``nox -s bench -- decode``."""
    if not session.posargs:
        names = sorted(path.stem for path in Path("benchmarks").glob("*.py"))
        session.error(f"name a benchmark: nox -s bench -- NAME, with NAME one of {', '.join(names) or '(none yet)'}")
    name, *arguments = session.posargs
    session.run("python", f"benchmarks/{name}.py", *arguments)
