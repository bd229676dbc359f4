"""Adopting the kit: stubs of three lines, one command, one report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_core.cli.main import main
from deepinfer_core.conformance.suites import SUITES

ROOT = Path(__file__).parents[2]
STUB = 'from deepinfer_core.conformance.plugin import suite_test\n\ntest_backend = suite_test("backend")\n'
CONFTEST = 'pytest_plugins = ["deepinfer_core.conformance.plugin"]\n'


def run_pytest(folder: Path, *arguments: str) -> int:
    """Run the stubs in a folder as a backend's own repository would."""
    isolated = ["--rootdir", str(folder), "-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider"]
    return int(pytest.main([*isolated, "--import-mode=importlib", str(folder), *arguments]))


def adopt(folder: Path) -> Path:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_backend.py").write_text(STUB)
    return folder


def test_stub_runs_its_suite_on_the_accelerator_that_is_named(tmp_path, capsys):
    code = run_pytest(adopt(tmp_path), "--accelerator", "null", "--conformance-json", str(tmp_path / "report.json"))

    report = json.loads((tmp_path / "report.json").read_text())
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "conformance of backend 'null' (accelerator null, policy allow_reference)" in printed
    assert report["backend"] == "null"
    assert report["families"]["device"]["passed"] == report["families"]["device"]["total"] > 10


def test_stale_known_failure_beside_the_stubs_fails_the_run(tmp_path, capsys):
    (tmp_path / "known_failures").mkdir()
    entry = '[[failure]]\nid = "backend/flies"\nreason = "r"\nissue = "7"\nexpires = 2099-01-01\n'
    (tmp_path / "known_failures" / "null.toml").write_text(entry)

    code = run_pytest(adopt(tmp_path), "--accelerator", "null")

    assert code == 1
    assert "known failure 'backend/flies' matches no check" in capsys.readouterr().out


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
