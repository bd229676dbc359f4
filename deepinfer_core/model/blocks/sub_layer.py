"""Residual streams around a sub-layer (spec model/04)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer_core.ops.hyper_connection.enter import enter
from deepinfer_core.ops.hyper_connection.mixes import head_mix
from deepinfer_core.ops.hyper_connection.streams import collapse, update
from deepinfer_core.ops.norm.rms_norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from deepinfer_core.model.blocks.settings import Builder
    from deepinfer_core.model.parameters import MixParameters


class SubLayer:
    """Collapses the streams, runs an inner function on the normed row, and puts its output back."""

    def __init__(self, builder: Builder, mix: MixParameters, norm_weight: Tensor) -> None:
        shape = builder.architecture.hyper_connection
        sizes: dict[str, Any] = {"C": shape.num_streams, "H": builder.architecture.hidden_size}
        self._parameters = (mix.function, mix.base, mix.scale, norm_weight)
        self._enter = builder.bind(
            enter,
            sizes=sizes,
            norm_eps=builder.architecture.norm_eps,
            eps=shape.eps,
            iterations=shape.sinkhorn_iterations,
            shifted=shape.shifted,
        )
        self._update = builder.bind(update, sizes=sizes)

    def __call__(
        self, streams: Tensor, mix: Tensor, inner: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """New streams, the mix handed to the next sub-layer, and the inner output.

        Args:
            streams: ``[T, m, H]``.
            mix: Mix handed over by the sub-layer before ``[T, m]``.
            inner: Attention or experts on the normed input.
        """
        x, pre, post, combination = self._enter(streams, mix, *self._parameters)
        output = inner(x)
        return self._update(output, streams, post, combination), pre, output

    def inner_input(self, streams: Tensor, mix: Tensor) -> Tensor:
        """What the inner function gets for these streams ``[T, H]``."""
        x, *_ = self._enter(streams, mix, *self._parameters)
        return x


class Head:
    """The end of a stack: collapse with the last mix, then the final norm."""

    def __init__(self, builder: Builder, norm_weight: Tensor, mix: MixParameters | None) -> None:
        architecture = builder.architecture
        sizes: dict[str, Any] = {"C": architecture.hyper_connection.num_streams, "H": architecture.hidden_size}
        self._norm_weight, self._mix = norm_weight, mix
        self._collapse = builder.bind(collapse, sizes=sizes)
        self._norm = builder.bind(rms_norm, sizes=sizes, eps=architecture.norm_eps)
        self._head_mix = None
        if mix is not None:
            self._head_mix = builder.bind(
                head_mix, sizes=sizes, norm_eps=architecture.norm_eps, eps=architecture.hyper_connection.eps
            )

    def __call__(self, streams: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
        """Collapsed row before the norm, and after it, ``[T, H]`` each."""
        if self._head_mix is not None and self._mix is not None:
            mix = self._head_mix(streams, self._mix.function, self._mix.base, self._mix.scale)
        collapsed = self._collapse(streams, mix)
        return collapsed, self._norm(collapsed, self._norm_weight)
