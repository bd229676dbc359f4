"""How many cache blocks an engine gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.errors import CapacityError
from deepinfer_core.logging import get_logger

if TYPE_CHECKING:
    from deepinfer_core.config.engine import EngineConfig
    from deepinfer_core.runtime.model import BoundModel

log = get_logger(__name__)

_SHARE_OF_FREE_MEMORY = 0.25
_GIB = 2**30


def num_cache_blocks(model: BoundModel, config: EngineConfig, max_model_len: int) -> int:
    """Blocks that the memory holds, but no more than all sequences at full length would use.

    Raises:
        CapacityError: The memory does not hold one block.
    """
    layout = model.layout
    free = model.device.memory().free_bytes
    budget = int(config.kv_cache_memory_gib * _GIB) or int(free * _SHARE_OF_FREE_MEMORY)
    blocks = min(budget // layout.bytes_per_block, config.max_num_seqs * layout.blocks_for(max_model_len))
    if blocks < 1:
        need = f"one block of {layout.bytes_per_block} bytes"
        raise CapacityError(f"kv cache: {budget / _GIB:.3f} GiB do not hold {need}; raise kv_cache_memory_gib")
    mib = blocks * layout.bytes_per_block / 2**20
    log.info("kv cache: %d blocks of %d tokens, %.1f MiB", blocks, layout.block_tokens, mib)
    return blocks
