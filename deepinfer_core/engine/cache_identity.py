"""What the bytes of a cached block depend on besides the tokens, so that nobody else's are ever used."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from deepinfer_core.prefix_cache.keys import CacheIdentity

if TYPE_CHECKING:
    from pathlib import Path

    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.opening import OpenedModel

_HEAD_BYTES = 1 << 20
"""Of each weight file: its header, which names and places every tensor, and the first weights."""


def cache_identity(opened: OpenedModel, config: EngineConfig) -> CacheIdentity:
    """The identity of what an engine caches.

    What bounded replay left is no good for exact hits, and states of an engine without drafts are none for one with
    them: they hold no keys of the draft module.
    """
    folder, model = opened.folder, opened.model
    numerics = (config.numerics, config.batch_invariant, config.prefix_cache)
    truncation = (config.prompt_truncation, config.prompt_keep_tokens)
    drafts = "drafts" if model.drafting is not None else "no drafts"
    return CacheIdentity(
        tokenizer=_digest(folder / "tokenizer.json"),
        model=checkpoint_fingerprint(folder, config.load_format),
        numerics=" ".join(map(str, (*numerics, *truncation, drafts))),
        cache_layout=f"{model.layout} on {model.device.facts['architecture']}",
    )


def checkpoint_fingerprint(folder: Path, load_format: str = "auto") -> str:
    """What tells checkpoints apart: digests of the config and of the weights.

    Weights count by the name, size and first MiB of each file: reading a checkpoint whole would take longer than
    computing a prompt. Dummy weights are the same in every run.
    """
    weights = "dummy" if load_format == "dummy" else _digest(*sorted(folder.glob("*.safetensors")))
    return f"{_digest(folder / 'config.json')} {weights}"


def _digest(*files: Path) -> str:
    state = blake2b(digest_size=16)
    for file in files:
        if file.is_file():
            state.update(f"{file.name} {file.stat().st_size} ".encode())
            with file.open("rb") as stream:
                state.update(stream.read(_HEAD_BYTES))
    return state.hexdigest()
