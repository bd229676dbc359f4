"""From the user's word for a model to its folder."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors

from deepinfer_core.errors import CheckpointError
from deepinfer_core.weights.check import check_checkpoint
from deepinfer_core.weights.locate import cached_snapshot, fetch_headers, locate

HTTP = importlib.import_module(errors.HTTPError.__module__)
"""The HTTP client of the hub library; its name changes between versions."""


def refuse(error: Exception) -> Callable[[str], str]:
    """A download that fails."""

    def download(hub_id: str) -> str:
        raise error

    return download


def must_not_download(hub_id: str) -> str:
    pytest.fail(f"{hub_id} was downloaded")


def test_shipped_model_is_found_by_its_word(tiny: Path) -> None:
    assert locate("tiny", download=must_not_download).samefile(tiny)


def test_existing_folder_is_taken_as_it_is(mini: Path) -> None:
    assert locate(str(mini), download=must_not_download) == mini


def test_hub_id_is_fetched(mini: Path) -> None:
    asked: list[str] = []

    def download(hub_id: str) -> str:
        asked.append(hub_id)
        return str(mini)

    assert locate("someone/some-model", download=download) == mini
    assert asked == ["someone/some-model"]


def test_folder_without_config_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()

    with pytest.raises(CheckpointError, match=r"has no config\.json.*it holds weights\.bin"):
        locate(str(tmp_path))


def test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()

    with pytest.raises(CheckpointError, match="it is a file; give the folder"):
        locate(str(tmp_path / "config.json"))


def test_misspelt_word_is_refused_with_the_nearest() -> None:
    with pytest.raises(CheckpointError, match="did you mean 'tiny'"):
        locate("tinny", download=must_not_download)


@pytest.mark.parametrize("model", ["/no/such/folder", "./none", "a/b/c", ""])
def test_what_is_neither_folder_nor_hub_id_is_refused(model: str) -> None:
    with pytest.raises(CheckpointError):
        locate(model, download=must_not_download)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalEntryNotFoundError("no connection"), "the hub is out of reach: check the network"),
        (errors.HFValidationError("bad"), "the hub did not deliver it"),
        (FileNotFoundError("someone/some-model"), "the hub has no such model"),
        (HTTP.ReadTimeout("slow"), "the hub did not deliver it"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (
            PermissionError(13, "Permission denied", "/cache"),
            "written .*/cache: Permission denied.* DEEPINFER_CACHE_DIR",
        ),
        (
            NotADirectoryError(20, "Not a directory", "/a.txt/hub"),
            "written .*name another one by download_dir",
        ),
    ],
)
def test_failed_download_is_explained(error: Exception, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as refused:
        locate("someone/some-model", download=refuse(error))

    assert refused.value.__cause__ is error
    assert refused.value.source == "someone/some-model"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.RepositoryNotFoundError, "the hub has no such model"),
        (errors.GatedRepoError, "accept them on the model's page"),
        (errors.HfHubHTTPError, "the hub did not deliver it"),
    ],
)
def test_refusal_of_the_hub_is_explained(kind: type[errors.HfHubHTTPError], words: str) -> None:
    response = HTTP.Response(404, request=HTTP.Request("GET", "http://hub.invalid"))

    with pytest.raises(CheckpointError, match=words):
        locate("someone/some-model", download=refuse(kind("no", response=response)))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Child processes see an empty cache and no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_offline_mode_is_honoured_and_named() -> None:
    code = "from deepinfer_core.weights.locate import locate; locate('someone/some-model')"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "CheckpointError: someone/some-model: there is no such folder" in done.stderr
    assert "HF_HUB_OFFLINE forbids to fetch it" in done.stderr


@pytest.mark.usefixtures("offline")
def test_model_in_the_cache_is_found_offline(mini: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--someone--some-model"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_bytes((mini / "config.json").read_bytes())
    code = "from deepinfer_core.weights.locate import locate; print(locate('someone/some-model'))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == str(snapshot), done.stderr


@dataclass
class Shelf:
    """A folder that stands for the hub, and how many bytes of weights were read from it."""

    folder: Path
    weight_bytes: int = 0

    def ls(self, path: str, detail: bool = True) -> list[Any]:  # noqa: ARG002  # always in detail
        return [{"name": f"{path}/{file.name}", "size": file.stat().st_size} for file in self.folder.iterdir()]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        content = (self.folder / Path(path).name).read_bytes()[start:end]
        self.weight_bytes += len(content) if path.endswith(".safetensors") else 0
        return content


def test_headers_are_enough_for_a_check(mini: Path, tmp_path: Path) -> None:
    hub = Shelf(mini)
    stored = sum(shard.stat().st_size for shard in mini.glob("*.safetensors"))

    folder = Path(fetch_headers("someone/some-model", tmp_path, files=hub))

    found, expected = check_checkpoint(folder), check_checkpoint(mini)
    assert (found.problems, found.bytes_by_part) == ((), expected.bytes_by_part)
    assert hub.weight_bytes < stored / 10
    assert sum(shard.stat().st_size for shard in folder.glob("*.safetensors")) == stored
    assert sum(shard.stat().st_blocks * 512 for shard in folder.glob("*.safetensors")) < stored / 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated: expected at least 8 bytes, found 0"),
        (b"\x05\x00", "truncated: expected at least 8 bytes, found 2"),
        ((50).to_bytes(8, "little") + b"{}", "truncated in its header"),
        ((2**60).to_bytes(8, "little") + b"{}" * 9, "not a safetensors file"),
    ],
)
def test_a_remote_file_that_is_no_checkpoint_is_reported_as_a_local_one_would_be(
    mini: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    shelf, folder = tmp_path / "shelf", tmp_path / "folder"
    shutil.copytree(mini, shelf, copy_function=shutil.copyfile)
    folder.mkdir()
    sorted(shelf.glob("*.safetensors"))[0].write_bytes(content)

    fetch_headers("someone/some-model", folder, files=Shelf(shelf))

    assert any(words in problem for problem in check_checkpoint(folder).problems)
    assert check_checkpoint(folder).problems == check_checkpoint(shelf).problems


def test_what_was_downloaded_before_is_found_in_the_folder_for_downloads(mini: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--some-model"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    shutil.copyfile(mini / "config.json", snapshot / "config.json")

    assert cached_snapshot("someone/some-model", str(tmp_path)) is None
    (snapshot / "model.safetensors").touch()
    assert cached_snapshot("someone/some-model", str(tmp_path)) == snapshot
    assert cached_snapshot("someone/other-model", str(tmp_path)) is None
