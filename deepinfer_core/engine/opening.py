"""From what a user names (model, accelerator) to a model that is bound and ready."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.backend import registry
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.config.numerics import variant
from deepinfer_core.engine.compressed_vocabulary import check_compressed_size, compress_vocabulary
from deepinfer_core.engine.draft_settings import draft_settings
from deepinfer_core.engine.tokenizer import load_tokenizer
from deepinfer_core.engine.weight_memory import check_weights_fit
from deepinfer_core.runtime.model import bind_model
from deepinfer_core.weights.load import load_model
from deepinfer_core.weights.locate import download_snapshot, locate

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.speculation import SpeculativeConfig
    from deepinfer_core.engine.tokenizer import Tokenizer
    from deepinfer_core.runtime.model import BoundModel


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model that can run.

    Attributes:
        folder: Its checkpoint.
        model: Bound to a device.
        tokenizer: None for a dummy model whose folder has no tokenizer.
    """

    folder: Path
    model: BoundModel
    tokenizer: Tokenizer | None


def open_model(  # noqa: PLR0913 - one keyword for each setting
    model: str,
    *,
    accelerator: str = registry.AUTO,
    numerics: str = "released",
    policy: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE,
    download_dir: str = "",
    load_format: str = "auto",
    max_model_len: int = 0,
    batch_invariant: bool = False,
    weight_copies: str = "auto",
    speculation: SpeculativeConfig | None = None,
) -> OpenedModel:
    """Find, check, load and bind a model.

    Args:
        model: Folder, hub id or the word of a shipped model.
        accelerator: Which backend serves it.
        numerics: Name of an arithmetic variant (``config.numerics``).
        policy: What is accepted besides native implementations.
        download_dir: Folder for models from the hub; empty for the hub library's own cache.
        load_format: ``auto``, or ``dummy`` for random weights of the config's shape.
        max_model_len: Longest sequence; 0 takes the model's maximum.
        batch_invariant: Run every row by implementations that give it the same bits in any batch.
        weight_copies: What the backend may keep of the weights (``EngineConfig.weight_copies``).
        speculation: How drafts are made; None for plain decoding.

    Raises:
        DeepInferError: Anything that is wrong with the request, the checkpoint or the machine, in words.
    """
    arithmetic = variant(numerics)
    info = registry.select(accelerator)
    folder = locate(model, download=partial(download_snapshot, cache_dir=download_dir))
    backend = registry.load(info)
    settings = partial(
        draft_settings, speculation, folder=folder, batch_invariant=batch_invariant, load_format=load_format
    )

    def admit(architecture: ModelArchitecture) -> None:
        settings(architecture)
        check_weights_fit(architecture, device=backend.device(), model=model, mapped=load_format != "dummy")

    loaded = load_model(folder, load_format=load_format, admit=admit)
    has_tokenizer = load_format != "dummy" or (folder / "tokenizer.json").is_file()
    tokenizer = load_tokenizer(folder, loaded.architecture) if has_tokenizer else None
    compressed = _compressed_map(loaded.architecture, tokenizer, str(folder))
    bound = bind_model(
        loaded.architecture,
        loaded.parameters,
        compressed,
        backend,
        numerics=arithmetic,
        policy=policy,
        max_positions=max_model_len,
        batch_invariant=batch_invariant,
        weight_copies=weight_copies,
        draft=settings(loaded.architecture),
    )
    return OpenedModel(folder=folder, model=bound, tokenizer=tokenizer)


def _compressed_map(architecture: ModelArchitecture, tokenizer: Tokenizer | None, source: str) -> tuple[int, ...]:
    """Token id -> compressed id. Without a tokenizer (dummy weights) ids fold by remainder."""
    if architecture.engram is None:
        return ()
    size = architecture.engram.compressed_vocab_size
    if tokenizer is None:
        return tuple(token % size for token in range(architecture.vocab_size))
    vocabulary = compress_vocabulary(tokenizer.backing)
    check_compressed_size(vocabulary, size, source)
    return vocabulary.table(architecture.vocab_size)
