"""What the user calls a model -> the folder that holds its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast

from deepinfer_core.errors import CheckpointError, nearest
from deepinfer_core.weights.check import CONFIG_FILE
from deepinfer_core.weights.header import LENGTH_BYTES, MAX_HEADER_BYTES

SHIPPED_MODELS = ("tiny",)
"""Checkpoints that come with the project, by the word that names them."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILES = ["*.json", "*.safetensors"]
_SUBFOLDERS = ["*/*"]

Download = Callable[[str], str]
"""Takes a hub id, brings its files to the local cache, returns the folder."""


class RemoteFiles(Protocol):
    """What is asked of a file system (``fsspec``) to read parts of files."""

    def ls(self, path: str, detail: bool = True) -> list[Any]:
        """A mapping with ``name`` and ``size`` for each entry of a folder."""
        ...

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> Any:
        """Bytes ``start .. end - 1`` of a file, or all of it."""
        ...


def download_snapshot(hub_id: str, cache_dir: str = "") -> str:
    """Bring a hub repository's files to a cache folder (the hub library's own by default); offline, find them there."""
    import huggingface_hub

    folder = cache_dir or None
    return huggingface_hub.snapshot_download(
        hub_id, cache_dir=folder, allow_patterns=_FILES, ignore_patterns=_SUBFOLDERS
    )


def fetch_headers(hub_id: str, folder: Path, *, files: RemoteFiles | None = None) -> str:
    """Bring what a check reads of a hub repository to a folder: small files, and the headers of the weights.

    The weights stay where they are: their files have the true size, but behind the header nothing is stored in them.

    Args:
        hub_id: The repository.
        folder: Empty; takes the files.
        files: The hub, if None.

    Returns:
        The folder, as :data:`Download` does.
    """
    import huggingface_hub

    hub = cast(RemoteFiles, huggingface_hub.HfFileSystem()) if files is None else files
    for entry in hub.ls(hub_id, detail=True):
        source, num_bytes = entry["name"], entry["size"]
        target = folder / PurePosixPath(source).name
        if source.endswith(".json"):
            target.write_bytes(hub.cat_file(source))
        elif source.endswith(".safetensors"):
            _store_header(target, partial(hub.cat_file, source), num_bytes)
    return str(folder)


def _store_header(target: Path, read: Callable[[int, int], Any], num_bytes: int) -> None:
    """Write the header of a file into a file of the same size; what is no header is left to whoever reads it."""
    start: bytes = read(0, min(LENGTH_BYTES, num_bytes))
    end = min(LENGTH_BYTES + min(int.from_bytes(start, "little"), MAX_HEADER_BYTES), num_bytes)
    with target.open("wb") as file:
        file.write(start + (read(LENGTH_BYTES, end) if end > LENGTH_BYTES else b""))
        file.truncate(num_bytes)


def cached_snapshot(hub_id: str, cache_dir: str = "") -> Path | None:
    """The folder of a hub repository whose weights were downloaded before, all or some; None when there are none."""
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(hub_id, cache_dir=cache_dir or None, local_files_only=True))
    except huggingface_hub.errors.LocalEntryNotFoundError:
        return None
    return folder if any(folder.glob("*.safetensors")) else None


def locate(model: str, *, download: Download = download_snapshot) -> Path:
    """The checkpoint folder of a model.

    Args:
        model: The word of a shipped model (which wins over a folder of that name; write ``./tiny`` for the folder),
            an existing folder, or a hub id such as ``owner/name``. Files from the hub are kept in its cache, and
            ``HF_HUB_OFFLINE`` is honoured.
        download: Fetches a hub id.

    Raises:
        CheckpointError: Nothing of that name is there or can be fetched, or the folder is no checkpoint.
    """
    if model in SHIPPED_MODELS:
        return _with_config(Path(__file__).parent.parent / "models" / model, model)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _with_config(folder, model)
    if folder.is_file():
        raise CheckpointError(f"it is a file; give the folder that holds {CONFIG_FILE} and the weights", model)
    if not _HUB_ID.fullmatch(model):
        raise CheckpointError(
            "there is no such folder, and it is not a hub id of the form owner/name; "
            f"models that come with the project: {', '.join(SHIPPED_MODELS)}{nearest(model, SHIPPED_MODELS)}",
            model,
        )
    return _with_config(_fetch(model, download), model)


def _with_config(folder: Path, model: str) -> Path:
    if (folder / CONFIG_FILE).is_file():
        return folder
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = f"it holds {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}" if names else "it is empty"
    raise CheckpointError(f"the folder {folder} has no {CONFIG_FILE}, so it is not a checkpoint ({found})", model)


def _fetch(hub_id: str, download: Download) -> Path:
    from huggingface_hub import errors

    transport_error = errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]  # of whichever client the hub uses
    try:
        return Path(download(hub_id))
    except (transport_error, errors.HFValidationError, OSError) as error:
        raise CheckpointError(_explain(error), hub_id) from error


def _explain(error: Exception) -> str:
    """What a failed download means to the user, and what to do."""
    from huggingface_hub import constants, errors

    match error:
        case errors.GatedRepoError():
            return "the hub wants its terms accepted first: accept them on the model's page, then run 'hf auth login'"
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            absent = "there is no such folder, and the hub's cache does not hold the model"
            if constants.HF_HUB_OFFLINE:
                return (
                    f"{absent}; HF_HUB_OFFLINE forbids to fetch it: unset it, or fetch the model where there is network"
                )
            return f"{absent}; the hub is out of reach: check the network"
        case PermissionError() | NotADirectoryError() | FileExistsError():
            return (
                f"the folder for downloads cannot be written ({error.filename}: {error.strerror}); "
                "name another one by download_dir or DEEPINFER_CACHE_DIR"
            )
        case errors.RepositoryNotFoundError() | FileNotFoundError():
            return "there is no such folder, and the hub has no such model (a private one needs 'hf auth login')"
        case _:
            return f"the hub did not deliver it ({error}); try again, what is complete is kept"
