"""DeepInfer core: op contracts, model graph, caches, engine, CPU backend and conformance kit.

Public names are resolved on first use, so that importing the package imports no tensor library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.engine.async_llm import AsyncLLM
    from deepinfer_core.llm import LLM
    from deepinfer_core.outputs import CompletionOutput, RequestOutput
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.structured_outputs_params import StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "deepinfer_core.llm",
    "AsyncLLM": "deepinfer_core.engine.async_llm",
    "CompletionOutput": "deepinfer_core.outputs",
    "EngineConfig": "deepinfer_core.config.engine",
    "RequestOutput": "deepinfer_core.outputs",
    "SamplingParams": "deepinfer_core.sampling_params",
    "StructuredOutputsParams": "deepinfer_core.structured_outputs_params",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
