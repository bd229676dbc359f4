"""The cache memory of sequences: as many blocks as their tokens need, and one state slot each."""

from __future__ import annotations

from deepinfer_core.config.architecture import BLOCK_TOKENS
from deepinfer_core.errors import CapacityError
from deepinfer_core.scheduler.block_pool import BlockPool
from deepinfer_core.scheduler.prefix_search import Hit
from deepinfer_core.scheduler.sequence import Sequence


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class CacheMemory:
    """Gives memory to sequences and takes it back; ``block_ids`` and ``state_slot`` are set here and nowhere else."""

    def __init__(self, num_blocks: int, num_state_slots: int) -> None:
        """Everything is free at first; the numbers do not count the dummies.

        Raises:
            CapacityError: There is no block or no state slot at all.
        """
        if num_blocks < 1 or num_state_slots < 1:
            raise CapacityError(
                f"the cache has {num_blocks} blocks and {num_state_slots} state slots, but a sequence needs one of "
                "each at least; give the cache more memory"
            )
        self.blocks = BlockPool(num_blocks)
        self.slots = BlockPool(num_state_slots, "state slot")

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole cache holds."""
        return self.blocks.size * BLOCK_TOKENS

    def can_admit(self, sequence: Sequence, headroom_blocks: int, hit: Hit) -> bool:
        """True when a waiting sequence would find its memory and so many blocks would stay free."""
        shared = hit.block_ids.values() if hit.resume else ()
        num_revived = sum(not self.blocks.num_references(block_id) for block_id in shared)
        needed = blocks_for(sequence.num_tokens + 1) - len(shared) + num_revived
        return self.slots.num_free > 0 and self.blocks.num_free >= needed + headroom_blocks

    def admit(self, sequence: Sequence, hit: Hit) -> None:
        """Give a sequence its slot, and blocks for all that it knows and the token that comes next.

        The whole prompt has its memory from the first chunk on, so that no prompt gets stuck half-way. Blocks of a hit
        that are on the device are shared; the others are new.
        """
        shared = hit.block_ids if hit.resume else {}
        self.blocks.share(shared.values())
        num_blocks = blocks_for(sequence.num_tokens + 1)
        fresh = iter(self.blocks.allocate(num_blocks - len(shared)))
        sequence.block_ids = [shared[place] if place in shared else next(fresh) for place in range(num_blocks)]
        [sequence.state_slot] = self.slots.allocate(1)

    def may_grow(self, sequence: Sequence) -> bool:
        """True when a sequence could need more blocks than it has before it ends."""
        return blocks_for(sequence.max_num_tokens) > len(sequence.block_ids)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let a sequence's blocks hold so many tokens; False, with nothing changed, when there are not enough."""
        missing = blocks_for(num_tokens) - len(sequence.block_ids)
        if missing <= 0:
            return True
        if missing > self.blocks.num_free:
            return False
        sequence.block_ids += self.blocks.allocate(missing)
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back all that a sequence has; what others refer to stays in use until they let go."""
        self.blocks.release(sequence.block_ids)
        if sequence.state_slot:
            self.slots.release([sequence.state_slot])
        sequence.block_ids, sequence.state_slot = [], 0

    def require_all_free(self) -> None:
        """Raise unless every block and slot came back.

        Raises:
            InternalError: Something leaked.
        """
        self.blocks.require_all_free()
        self.slots.require_all_free()
