"""``deepinfer backends``, with backends of others that are fine, broken, foreign or doubled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

INFO = """
    from deepinfer_core.backend.interface import ProbeResult

    class Info:
        name = {name!r}
        interface_version = {version}
        priority = 50
        install_hint = "buy one"

        def probe(self):
            return ProbeResult(usable={usable}, reason={reason!r}, device_count=2)

        def prepare_process(self):
            return {{}}

        def load(self):
            raise OSError("libabacus.so: cannot open shared object file")
"""


def info(name: str, *, version: int = 1, usable: bool = True, reason: str = "two of them") -> str:
    return INFO.format(name=name, version=version, usable=usable, reason=reason)


def test_every_backend_is_listed_with_version_state_and_reason(offer, deepinfer) -> None:
    offer("abacus", "abacus", info("abacus", usable=False, reason="no beads; no wires"))
    offer("bad", "bad", "import there_is_no_such_module")
    offer("foreign", "foreign", info("foreign", version=99))
    offer("one-card", "card", info("card"))
    offer("other-card", "card", info("card"))

    done = deepinfer("backends")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert {"abacus", "bad", "foreign", "card", "cpu", "null"} <= set(rows)
    assert rows["abacus"].split(maxsplit=3)[1:] == ["9.9", "unusable", "no beads;"]
    assert lines[lines.index(rows["abacus"]) + 1].strip() == "no wires"
    assert "broken" in rows["bad"]
    assert "ModuleNotFoundError: No module named 'there_is_no_such_module'" in rows["bad"]
    assert "made for version 99 of the backend interface" in rows["foreign"]
    assert "offered by 2 packages (one-card 9.9, other-card 9.9)" in rows["card"]
    assert done.stderr == ""


def test_json_holds_states_and_the_op_tables_of_usable_backends(offer, deepinfer, tmp_path: Path) -> None:
    offer("abacus", "abacus", info("abacus"))

    done = deepinfer("backends", "--json", "states.json")

    assert done.returncode == 0, done.stderr
    states = {state["name"]: state for state in json.loads((tmp_path / "states.json").read_text())["backends"]}
    assert states["abacus"]["state"] == "broken"
    assert "'abacus' does not load: libabacus.so" in states["abacus"]["reason"]
    assert states["abacus"]["ops"] is None
    assert states["cpu"]["state"] == "usable"
    assert "norm.rms_norm" in {row["op"] for row in states["cpu"]["ops"]}
    assert {row["outcome"] for row in states["cpu"]["ops"]} <= {"native", "decomposed", "reference"}


def test_one_backend_is_shown_with_its_op_table(deepinfer) -> None:
    done = deepinfer("backends", "ascend")

    assert done.returncode == 0, done.stderr
    header, table = done.stdout.split("\n\n")
    assert "ascend" in header
    assert "cpu" not in header
    assert " ops: 0 native, 0 decomposed, " in table
    assert "\nnorm.rms_norm " in table


def test_backend_that_does_not_load_is_an_error_with_the_remedy(offer, deepinfer) -> None:
    offer("abacus", "abacus", info("abacus"))

    done = deepinfer("backends", "abacus")

    assert done.returncode == 2
    assert done.stderr == (
        "deepinfer: error: backend 'abacus' does not load: libabacus.so: cannot open shared object file\n"
        "To use it: buy one\n"
    )


def test_json_that_cannot_be_written_is_an_error_of_the_user(deepinfer) -> None:
    done = deepinfer("backends", "cuda", "--json", "no/such/folder.json")

    assert done.returncode == 2
    assert "cannot write no/such/folder.json: No such file or directory" in done.stderr


def test_listing_loads_no_backend_and_no_tensor_library() -> None:
    code = (
        "import sys; from deepinfer_core.cli.main import main; main(['backends']); "
        "print(*(name for name in sys.modules if name.endswith('.backend') and name != 'deepinfer_core.backend' "
        "or name in ('torch', 'numpy')), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.split() == []


def test_names_alone_import_not_even_the_package_of_a_backend() -> None:
    code = (
        "import sys; from deepinfer_core.backend.registry import backend_names; names = backend_names(); "
        "print(*names, '|', *(m for m in sys.modules if m.startswith(('deepinfer_cuda', 'deepinfer_ascend'))))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    names, imported = done.stdout.split("|")
    assert {"cpu", "null"} <= set(names.split())
    assert [name for name in imported.split() if not name.startswith("__editable__")] == []
