"""What to do when a backend has no native implementation of an op."""

from __future__ import annotations

from enum import Enum


class FallbackPolicy(Enum):
    """How much of the graph may run other than natively; no policy permits silence."""

    STRICT = "strict"
    """Only native implementations."""
    DECOMPOSE = "decompose"
    """Native implementations, and composites run as steps."""
    ALLOW_REFERENCE = "allow_reference"
    """Anything; the report names it."""

    def accepts(self, outcome: str) -> bool:
        """True when an outcome of binding is allowed."""
        allowed = {
            "strict": ("native",),
            "decompose": ("native", "decomposed"),
            "allow_reference": ("native", "decomposed", "reference"),
        }
        return outcome in allowed[self.value]
