"""How many cache blocks an engine gets, once weights are loaded and the workspace is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.errors import CapacityError
from deepinfer_core.logging import get_logger
from deepinfer_core.runtime.drafter import drafting_bytes
from deepinfer_core.runtime.workspace import EngineLimits

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.runtime.model import BoundModel
    from deepinfer_core.runtime.workspace import Workspace

log = get_logger(__name__)

_SHARE_OF_FREE_MEMORY = 0.25
"""Where some op does not state what it takes."""
_SHARE_WHERE_STATED = 0.9
"""Where every op does; the rest is for what an allocator loses between tensors."""
_GIB = 2**30


def num_cache_blocks(model: BoundModel, config: EngineConfig, max_model_len: int, num_slots: int) -> int:
    """Blocks that the memory holds, but no more than all sequences at full length would use.

    What is free is divided in this order: the workspace of the largest steps, the state slots, and a share of the rest
    for blocks. A size that was asked for is taken as it is; a warning says when it leaves too little.

    Args:
        model: The model with its weights.
        config: Limits and memory.
        max_model_len: Tokens of the longest sequence.
        num_slots: State slots, the dummy not counted.

    Raises:
        CapacityError: The memory does not hold one block; the message says what is needed and what is free.
    """
    layout = model.layout
    limits = EngineLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        rows_per_sequence=1 + (model.drafting.settings.num_drafts if model.drafting is not None else 0),
    )
    drafts = drafting_bytes(model, num_slots + 1, config.max_num_seqs)
    workspace = model.workspace(limits)
    slots = (num_slots + 1) * layout.bytes_per_slot
    free = model.device.memory().free_bytes
    left = free - workspace.total_bytes - slots - drafts
    log.info("workspace: %s; drafts %.2f GiB; %.2f GiB are free", workspace, drafts / _GIB, free / _GIB)
    asked = int(config.kv_cache_memory_gib * _GIB)
    if asked > left:
        log.warning("kv cache: %s", _shortage(asked, workspace, slots + drafts, free))
    share = _SHARE_OF_FREE_MEMORY if workspace.unstated else _SHARE_WHERE_STATED
    budget = asked or int(max(left, 0) * share)
    blocks = min(budget // layout.bytes_per_block, config.max_num_seqs * layout.blocks_for(max_model_len))
    if blocks < 1:
        raise CapacityError(_too_small(layout.bytes_per_block, asked, workspace, slots + drafts, free))
    mib = blocks * layout.bytes_per_block / 2**20
    log.info("kv cache: %d blocks of %d tokens, %.1f MiB", blocks, layout.block_tokens, mib)
    return blocks


def _too_small(block_bytes: int, asked: int, workspace: Workspace, slots: int, free: int) -> str:
    if asked:
        need = f"one block of {block_bytes} bytes"
        return f"kv cache: {asked / _GIB:.3f} GiB do not hold {need}; raise kv_cache_memory_gib"
    remedy = "lower max_num_batched_tokens, max_num_seqs or max_model_len, or use a device with more memory"
    return f"kv cache: {_shortage(block_bytes, workspace, slots, free)}; {remedy}"


def _shortage(cache: int, workspace: Workspace, slots: int, free: int) -> str:
    """What is needed besides the weights, and what is free."""
    needed = workspace.total_bytes + slots + cache
    return (
        f"{needed / _GIB:.3f} GiB are needed besides the weights: workspace {workspace}, state slots and drafts "
        f"{slots / _GIB:.3f} GiB, blocks {cache / _GIB:.3f} GiB; {free / _GIB:.3f} GiB are free"
    )
