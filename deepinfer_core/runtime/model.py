"""A model bound to one device: parameters packed, graph built, ready for caches and steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deepinfer_core.backend.binding import Binder
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.model.blocks.settings import Builder
from deepinfer_core.model.cache_layout import CacheLayout, cache_layout
from deepinfer_core.model.engram_tables import engram_tables
from deepinfer_core.model.graph import HashSetup, ModelGraph
from deepinfer_core.ops.kv_cache.store import copy_blocks
from deepinfer_core.ops.rotary.frequencies import rotary_table
from deepinfer_core.runtime.cache import allocate_caches
from deepinfer_core.runtime.drafting_ops import DraftingOps
from deepinfer_core.runtime.parameters import to_device
from deepinfer_core.runtime.sampler import Sampler
from deepinfer_core.runtime.token_feedback import TokenFeedback
from deepinfer_core.runtime.workspace import EngineLimits, Workspace, plan_workspace

if TYPE_CHECKING:
    from deepinfer_core.backend.binding import BoundOp
    from deepinfer_core.backend.device import Device
    from deepinfer_core.backend.interface import Backend
    from deepinfer_core.backend.report import BindingReport
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.numerics import Numerics
    from deepinfer_core.config.speculation import DraftSettings
    from deepinfer_core.model.parameters import ModelParameters
    from deepinfer_core.model.step_inputs import KVCaches

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundModel:
    """What :func:`bind_model` returns.

    Attributes:
        architecture: The model's shape.
        numerics: The arithmetic it was bound with.
        device: Where it runs.
        graph: The bound graph.
        sampler: Chooses tokens from logits.
        feedback: Hands sampled tokens to the next step.
        pool_copies: Copies whole blocks or state slots.
        layout: What its caches look like.
        report: Which ops run natively.
        max_positions: Positions that the rotary tables cover.
        compressed_map: Token id -> compressed id.
        captures_graphs: Decode steps are recorded and replayed.
        is_asynchronous: Steps run behind the host.
        ops: Every op that was bound for it.
        drafting: What makes and counts drafts; None without speculative decoding.
    """

    architecture: ModelArchitecture
    numerics: Numerics
    device: Device
    graph: ModelGraph
    sampler: Sampler
    feedback: TokenFeedback
    pool_copies: BoundOp
    layout: CacheLayout
    report: BindingReport
    max_positions: int
    compressed_map: tuple[int, ...]
    captures_graphs: bool = False
    is_asynchronous: bool = False
    ops: tuple[BoundOp, ...] = ()
    drafting: DraftingOps | None = None

    @property
    def lookback(self) -> int:
        """Compressed ids before a row that its n-grams reach."""
        engram = self.architecture.engram
        return engram.max_ngram - 1 if engram else 0

    def workspace(self, limits: EngineLimits) -> Workspace:
        """What steps within these limits take on the device besides weights and caches."""
        return plan_workspace(self.architecture, self.numerics, self.ops, limits, keeps_both=self.captures_graphs)

    def allocate(self, num_blocks: int, num_slots: int) -> KVCaches:
        """Caches for this model; block 0 and slot 0 are dummies on top of the numbers given."""
        return allocate_caches(self.layout, num_blocks + 1, num_slots + 1, self.device.torch_device, self.numerics)


def bind_model(  # noqa: PLR0913 - one keyword for each choice
    architecture: ModelArchitecture,
    parameters: ModelParameters,
    compressed_map: tuple[int, ...],
    backend: Backend,
    *,
    numerics: Numerics,
    policy: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE,
    max_positions: int = 0,
    batch_invariant: bool = False,
    weight_copies: str = "auto",
    draft: DraftSettings | None = None,
) -> BoundModel:
    """Bind a model to a backend.

    Args:
        architecture: The model's shape.
        parameters: Its weights on the host.
        compressed_map: Token id -> compressed id, for the n-gram memory.
        backend: A loaded backend.
        numerics: Arithmetic of the run.
        policy: What is accepted besides native implementations.
        max_positions: Longest context; 0 takes the model's maximum.
        batch_invariant: Bind only implementations that give a row the same bits in any company.
        weight_copies: What the backend may keep of the weights (``EngineConfig.weight_copies``).
        draft: How drafts are made; None for plain decoding.

    Raises:
        UnsupportedByBackend: The policy refuses how some op would run, or it is not row-invariant; all are listed.
            Or the backend does not know this choice of ``weight_copies``.
        ConfigError: ``max_positions`` exceeds what the model was made for.
    """
    limit = architecture.max_position_embeddings
    if max_positions > limit:
        raise ConfigError(
            f"max_model_len is {max_positions}, but the model has {limit} positions; ask for at most {limit}"
        )
    positions = max_positions or limit
    device = backend.device()
    binder = Binder(backend, policy, numerics.activation, row_invariant=batch_invariant, weight_copies=weight_copies)
    table_rows = positions + (architecture.draft.block_size if architecture.draft else 0)
    plain, compressed = (rotary_table(table_rows, architecture.attention, compressed=c) for c in (False, True))
    tables = (plain.to(device.torch_device), compressed.to(device.torch_device))
    builder = Builder(architecture, numerics, binder, tables, partial(to_device, device=device.torch_device))
    setup = _hash_setup(architecture, compressed_map)
    graph = ModelGraph(builder, parameters, setup, draft_temperatures=draft.temperatures if draft is not None else ())
    sampler = Sampler(
        binder,
        vocab_size=architecture.vocab_size,
        eos_token_id=architecture.eos_token_id,
        races=draft.is_coupled if draft is not None else batch_invariant,
    )
    feedback = TokenFeedback(binder, compressed_map, vocab_size=architecture.vocab_size)
    drafting = DraftingOps(binder, draft, sampler) if draft is not None else None
    pool_copies = binder.bind(copy_blocks)
    report = binder.finish()
    log.info(report.summary())
    wide_bytes = 8 if numerics.activation == "f64" else 4
    return BoundModel(
        architecture=architecture,
        numerics=numerics,
        device=device,
        graph=graph,
        sampler=sampler,
        feedback=feedback,
        pool_copies=pool_copies,
        layout=cache_layout(architecture, wide_bytes=wide_bytes),
        report=report,
        max_positions=positions,
        compressed_map=compressed_map,
        captures_graphs=backend.capabilities.graph_capture,
        is_asynchronous=backend.capabilities.asynchronous,
        ops=tuple(binder.bound),
        drafting=drafting,
    )


def _hash_setup(architecture: ModelArchitecture, compressed_map: tuple[int, ...]) -> HashSetup | None:
    engram = architecture.engram
    if engram is None:
        return None
    return HashSetup(tables=engram_tables(engram), pad_id=compressed_map[engram.pad_token_id])
