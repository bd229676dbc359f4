"""Whether the decoder layers run on whole prompts or on their last tokens only (spec attention/05 A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from deepinfer_core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import AttentionArchitecture

TRUNCATION_MODES = ("off", "mask", "compact")
DEFAULT_KEEP_TOKENS = 140
"""What the released model is served with: its window of 128, 6 that may be rolled back, and 6 to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTruncation:
    """How much of a prompt the decoder layers see: those from the first layer of ratio 1 on.

    What the encoder layers and that first layer cache for good is the same in all modes. The decoder's windows reach
    back to the first kept token and no further, so hidden rows of the kept tokens are approximate, the more so the
    nearer they are to the first one; the model was made with that in mind.

    Attributes:
        mode: ``off`` runs every layer on every token. ``compact`` runs the decoder layers on the last ``keep_tokens``
            tokens of each prompt, and on one row of a chunk that lies before them. ``mask`` gives the same results
            at the cost of ``off``: it only restricts the windows, and is there to check ``compact``.
        keep_tokens: Tokens at the end of the whole prompt, however it is cut into chunks.

    Raises:
        ConfigError: A value is not allowed; all problems are listed.
    """

    mode: Literal["off", "mask", "compact"] = "off"
    keep_tokens: int = DEFAULT_KEEP_TOKENS

    def __post_init__(self) -> None:
        problems: list[str] = []
        mode: str = self.mode
        keep: Any = self.keep_tokens
        if mode not in TRUNCATION_MODES:
            hint = nearest(mode, TRUNCATION_MODES)
            problems.append(f"mode={mode!r} is unknown; choose one of {', '.join(TRUNCATION_MODES)}{hint}")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            problems.append(f"keep_tokens={keep!r} must be a whole number, 1 or more")
        if problems:
            raise ConfigError(problems, source="prompt truncation")

    @property
    def is_on(self) -> bool:
        """Whether anything differs from running every layer on every token."""
        return self.mode != "off"

    def check(self, attention: AttentionArchitecture) -> None:
        """Refuse to keep so few tokens that a window behind the prompt, after a rollback, would lack some.

        Args:
            attention: The model's window and how far a sequence may be rolled back.

        Raises:
            ConfigError: ``keep_tokens`` is less than both together.
        """
        least = attention.window_ring_rows
        if self.is_on and self.keep_tokens < least:
            raise ConfigError(
                f"keep_tokens={self.keep_tokens} is too few: the window of {attention.sliding_window} tokens and "
                f"{attention.max_backtrack_tokens} that may be rolled back need {least}; keep {least} or more, or "
                "turn truncation off",
                source="prompt truncation",
            )

    def first_kept(self, total_length: int) -> int:
        """Position of the first token that the decoder layers see of a prompt of ``total_length`` tokens."""
        return max(total_length - self.keep_tokens, 0) if self.is_on else 0


NO_TRUNCATION = PromptTruncation()
"""Every layer on every token."""
