"""An open model with an engine: what the synchronous and the asynchronous API share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer_core.config import env
from deepinfer_core.config.settings import resolve
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import open_model
from deepinfer_core.engine.prompts import PromptEncoder

if TYPE_CHECKING:
    from deepinfer_core.config.settings import Resolved
    from deepinfer_core.engine.opening import OpenedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A model that is ready to generate.

    Attributes:
        settings: How it was opened, and where each setting came from.
        opened: The model.
        engine: Its engine.
        prompts: Its tokenizer and chat format.
    """

    settings: Resolved
    opened: OpenedModel
    engine: Engine
    prompts: PromptEncoder


def open_session(model: str, settings: Mapping[str, Any]) -> Session:
    """Open a model and give it an engine.

    Args:
        model: A folder, a hub id, or the word of a shipped model.
        settings: Fields of :class:`~deepinfer_core.config.engine.EngineConfig`; ``fallback`` may be its name.

    Raises:
        DeepInferError: Anything wrong with settings, checkpoint or machine, in words.
    """
    resolved = resolve({"model": model, **settings}, env.read())
    config = resolved.config
    opened = open_model(
        config.model,
        accelerator=config.accelerator,
        numerics=config.numerics,
        policy=config.fallback,
        download_dir=config.download_dir,
        load_format=config.load_format,
        max_model_len=config.max_model_len,
        batch_invariant=config.batch_invariant,
        weight_copies=config.weight_copies,
        speculation=config.speculative_config,
    )
    return Session(
        settings=resolved, opened=opened, engine=Engine(opened, config), prompts=PromptEncoder(opened.tokenizer)
    )
