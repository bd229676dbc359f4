"""Routing and the mixture of experts (spec model/05)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.moe.experts import expert_layer
from deepinfer_core.ops.moe.select_experts import route

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from deepinfer_core.config.architecture import ExpertArchitecture
    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import ExpertParameters


class Experts:
    """The feed-forward sub-layer of a layer."""

    def __init__(self, builder: Builder, shape: ExpertArchitecture, parameters: ExpertParameters) -> None:
        numerics, hidden = builder.numerics, builder.architecture.hidden_size
        self._bias = parameters.router_bias
        self._cast = builder.bind_cast()
        self._route = builder.bind(
            route,
            weights={"router": parameters.router},
            sizes={"E": shape.num_experts, "H": hidden},
            experts_per_token=shape.experts_per_token,
            scaling=shape.routed_scaling,
            logits_dtype=builder.wide,
        )
        self._experts = builder.bind(
            expert_layer,
            weights={
                "gate_up": parameters.gate_up,
                "down": parameters.down,
                "shared_gate_up": parameters.shared_gate_up,
                "shared_down": parameters.shared_down,
            },
            sizes={"E": shape.num_experts, "K": shape.experts_per_token, "H": hidden, "F": shape.inner_size},
            limit=shape.swiglu_limit,
            quantize_inner=numerics.quantize_activations,
            round_inner=numerics.round_swiglu,
            out=builder.act,
        )

    def __call__(self, x: Tensor, trace: Callable[[str, Tensor], None]) -> Tensor:
        """Route each row and sum its experts and the shared one.

        Args:
            x: Normed input ``[T, H]``.
            trace: Receives ``router_ids`` and ``router_weights``.
        """
        ids, weights = self._route(x, self._bias)
        trace("router_ids", ids)
        trace("router_weights", weights)
        return self._experts(self._cast(x), ids, weights)
