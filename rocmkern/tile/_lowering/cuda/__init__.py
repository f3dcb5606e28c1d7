"""The tile language on NVIDIA GPUs (sm_80 and later), for numba-cuda.

Layout. The rows of a tile are spread over the block's warps, 16 consecutive rows (an *m-tile*) or a multiple of it to
each. Within a warp a tile lies as the accumulator of ``mma.sync.m16n8k16`` does: lane ``l`` has rows ``l / 4`` and
``l / 4 + 8`` of each m-tile, and of every 8 columns the two at ``2 * (l % 4)``. So `Rows` are two values per m-tile,
the same in the four lanes of a *quad*, and a row's reduction is two exchanges inside a quad.

The configuration of a kernel without products may ask for rows along lanes instead: see `Lines`.

=========  =======================================================================================================
tile       ``[m-tile][8 columns][row, row + 8][2 columns]`` float32 per lane
rows       ``[m-tile][row, row + 8]`` per lane
operand    16-bit: the A fragments of mma.sync, 4 registers of two elements for each m-tile and 16 columns (an
           accumulator rounded in place is one). float32: stored as a tile
stage      source tensor and the shared-memory addresses of two windows, one in use, one being filled by cp.async;
           with ``cfg.num_stages`` > 1 a ring of windows that the copy engine fills, see `rings`; with ``cfg.split_kv``
           ``cfg.num_stages + 1`` windows, of which each warp fills and reads the part with its own keys
=========  =======================================================================================================

Every value is an array of scalars in SSA form, which ends in registers. Products of float16 and bfloat16 use mma.sync
with float32 accumulation, products of float32 are float32 FMAs.
"""

from rocmkern.tile._lowering.cuda.backend import (
    COMPUTE_CAPABILITY,
    bound_config,
    can_overlap,
    device_function,
    has_matrix_instructions,
)
from rocmkern.tile._lowering.cuda.emit import LANES
from rocmkern.tile._lowering.cuda.install import install
from rocmkern.tile._lowering.cuda.rings import MAP_SYMBOL
from rocmkern.tile._lowering.cuda.windows import SHARED_MEMORY_SYMBOL

__all__ = [
    "COMPUTE_CAPABILITY",
    "LANES",
    "MAP_SYMBOL",
    "SHARED_MEMORY_SYMBOL",
    "bound_config",
    "can_overlap",
    "device_function",
    "has_matrix_instructions",
    "install",
]
