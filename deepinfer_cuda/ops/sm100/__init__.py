"""Implementations over DeepGEMM and FlashMLA for SM100, tried before the Triton kernels.

Nothing here has run on hardware: there was no SM100 to run it on, and neither library can be installed without one.
The calls were written from a reading of the libraries' source (spec dependencies section 3) and are checked, layouts
and numbers, against stand-ins on the CPU. So no row invariance is declared.
"""

from __future__ import annotations

from deepinfer_cuda.ops.sm100 import attention, experts, linear

IMPLEMENTATIONS = {**attention.IMPLEMENTATIONS, **experts.IMPLEMENTATIONS, **linear.IMPLEMENTATIONS}
