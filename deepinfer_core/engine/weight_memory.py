"""Whether a device holds a model's weights, before any of them is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.engine.memory_plan import plan_memory
from deepinfer_core.errors import CapacityError

if TYPE_CHECKING:
    from deepinfer_core.backend.device import Device
    from deepinfer_core.config.architecture import ModelArchitecture

_GIB = 2**30
_GROUPS_SHOWN = 3


def check_weights_fit(architecture: ModelArchitecture, device: Device, *, model: str, mapped: bool) -> None:
    """Compare the stored bytes of all weights with what is free.

    Args:
        architecture: The model.
        device: Where its weights will be.
        model: What the user called it, for the message.
        mapped: Weights come from files. On the host these are read where they are, and need no memory that is free.

    Raises:
        CapacityError: They are larger; the message says what is needed, by what, and what is free.
    """
    if mapped and device.torch_device.type == "cpu":
        return
    plan, memory = plan_memory(architecture), device.memory()
    if plan.total_bytes <= memory.free_bytes:
        return
    largest = [f"{name} {size / _GIB:.1f} GiB" for name, size in list(plan.stored.items())[:_GROUPS_SHOWN]]
    raise CapacityError(
        f"the weights of {model} need {plan.total_bytes / _GIB:.1f} GiB ({', '.join(largest)}, ...), but "
        f"{memory.free_bytes / _GIB:.1f} of {memory.total_bytes / _GIB:.1f} GiB are free on "
        f"{device.facts.get('name', 'the device')}; 'deepinfer fit {model}' says which devices hold them"
    )
