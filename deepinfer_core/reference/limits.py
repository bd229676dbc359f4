"""Limits that implementations of the CPU backend share."""

from __future__ import annotations

from deepinfer_core.ops.limits import Limit, Site, dtype_in

FLOAT32 = dtype_in("bf16", "f32")
"""Works in float32; float64 activations, which exist for exact comparison, run by reference."""
FLOAT64 = dtype_in("f64")
ROW_INVARIANT_PRODUCTS = Limit(
    "products must not depend on the rows beside",
    lambda site: site.facts.get("row_invariant_products") == "yes",
    lambda site: f"row_invariant_products={site.facts.get('row_invariant_products', 'unknown')}",
)
COPIES = Limit(
    "its dense copies of the weights are not wanted (weight_copies='packed')",
    lambda site: weight_copies(site) != "packed",
)
"""For implementations that have only dense copies."""


def weight_copies(site: Site) -> str:
    """What the engine asked for: ``auto``, ``dense`` or ``packed`` (``EngineConfig.weight_copies``)."""
    return site.facts.get("weight_copies", "auto")
