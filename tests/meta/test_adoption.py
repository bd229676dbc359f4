"""Adopting the kit: stubs of three lines, one command, one report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import deepinfer_core.conformance
from deepinfer_core.cli.main import main
from deepinfer_core.conformance.suites import SUITES

ROOT = Path(__file__).parents[2]
STUB = 'from deepinfer_core.conformance.plugin import suite_test\n\ntest_backend = suite_test("backend")\n'
CONFTEST = 'pytest_plugins = ["deepinfer_core.conformance.plugin"]\n'


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the stubs in a folder as a backend's own repository would."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
        str(folder),
        *arguments,
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def adopt(folder: Path) -> Path:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_backend.py").write_text(STUB)
    return folder


def test_stub_runs_its_suite_on_the_accelerator_that_is_named(tmp_path):
    done = run_pytest(adopt(tmp_path), "--accelerator", "null", "--conformance-json", str(tmp_path / "report.json"))

    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout
    assert "conformance of backend 'null' (accelerator null, policy allow_reference)" in done.stdout
    assert report["backend"] == "null"
    assert report["families"]["device"]["passed"] == report["families"]["device"]["total"] > 10


def test_stale_known_failure_beside_the_stubs_fails_the_run(tmp_path):
    (tmp_path / "known_failures").mkdir()
    entry = '[[failure]]\nid = "backend/flies"\nreason = "r"\nissue = "7"\nexpires = 2099-01-01\n'
    (tmp_path / "known_failures" / "null.toml").write_text(entry)

    done = run_pytest(adopt(tmp_path), "--accelerator", "null")

    assert done.returncode == 1
    assert "known failure 'backend/flies' matches no check" in done.stdout


def test_command_needs_no_test_folder_and_writes_the_report(tmp_path, capsys):
    file = tmp_path / "report.json"

    code = main(["conformance", "--accelerator", "null", "--only", "token_embedding", "--json", str(file)])

    report = json.loads(file.read_text())
    printed = capsys.readouterr().out
    assert code == 0
    assert report["passed"]
    assert report["families"]["embedding"]["refused"] == 1
    assert {"deepinfer-core", "torch", "python"} <= set(report["versions"])
    assert "embedding.token_embedding: example of a native op: copies rows; out must be 'bf16'" in printed
    assert "checks, none failed" in printed


def test_command_fails_when_a_check_fails(capsys):
    code = main(["conformance", "--accelerator", "null", "--policy", "strict", "--only", "limits/norm.rms_norm/policy"])

    assert code == 1
    assert "FAILED limits/norm.rms_norm/policy on null" in capsys.readouterr().out


def test_command_fails_when_nothing_is_selected(capsys):
    code = main(["conformance", "--accelerator", "null", "--only", "no such check"])

    assert code == 1
    assert "no check was run" in capsys.readouterr().out


def test_every_suite_has_a_stub():
    stubs = {file.stem.removeprefix("test_") for file in (ROOT / "tests" / "conformance").glob("test_*.py")}

    assert stubs >= set(SUITES)


def test_kit_names_no_platform():
    folder = Path(deepinfer_core.conformance.__file__).parent
    platform = re.compile(r"cuda|ascend|nvidia|rocm|\bnpu\b", re.IGNORECASE)

    found = [(file.name, platform.findall(file.read_text())) for file in folder.glob("*.py")]

    assert [(name, words) for name, words in found if words] == []
