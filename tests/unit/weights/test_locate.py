"""From the user's word for a model to its folder."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import errors

from deepinfer_core.errors import CheckpointError
from deepinfer_core.weights.locate import locate

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
        (HTTP.ReadTimeout("slow"), "the hub did not deliver it"),
        (OSError(28, "No space left on device"), "No space left on device"),
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
