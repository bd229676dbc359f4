"""Whether prompts reuse what earlier ones left in the cache, and how exactly."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX_CACHE_MODES = ("off", "exact", "bounded")
DISK_WAIT_S = 2.0
"""Far more than a sound disk needs for what fits into memory, and what a request loses at most to one that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheConfig:
    """The mode with the sizes that it depends on.

    Attributes:
        mode: ``off``; ``exact``: a hit begins where the whole state was kept, so that nothing differs from a cold run;
            ``bounded``: where no state was kept, the last window of the hit is computed again from an empty one.
        num_snapshots: States that are kept on the device.
        window_tokens: The model's window.
        keep_tokens: Tokens at the end of a prompt that the decoder layers see, 0 for all. A state after a truncated
            prompt is that prompt's own: then none are kept, and hits are replayed.
        max_wait_s: Seconds that a sequence whose turn to be admitted has come may wait for payloads from a disk.
    """

    mode: str = "off"
    num_snapshots: int = 0
    window_tokens: int = 128
    keep_tokens: int = 0
    max_wait_s: float = DISK_WAIT_S

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    @property
    def takes_snapshots(self) -> bool:
        """Whether states are kept."""
        return self.is_on and self.num_snapshots > 0 and not self.keep_tokens

    @property
    def may_replay(self) -> bool:
        """Whether a hit without a state may be used."""
        return self.mode == "bounded"
