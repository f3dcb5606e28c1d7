"""For PyTorch: the public operations as its operators, and its attention function by ours.

Importing this defines ``torch.ops.rocmkern.NAME`` for every public operation that takes arrays. The public functions
find them by themselves where PyTorch has to see a call (see `rocmkern.calls.routing`); a program that loads a graph
with such operators imports this first.
"""

from __future__ import annotations

from rocmkern.torch import operators as _operators  # noqa: F401
from rocmkern.torch.attention import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
