"""flash-attn's functions, by the kernels of this library: a program written for flash-attn changes one import.

    from rocmkern.flash_attn import flash_attn_func  # instead of: from flash_attn import flash_attn_func

Names, order and defaults of the parameters are those of flash-attn 2.8 (Dao-AILab/flash-attention). All take any array
that this library takes: NumPy arrays, `DeviceTensor`, torch tensors, and what has ``__dlpack__``. Each gives for a set
of arguments what flash-attn gives; what it refuses (float32, pages that are not a multiple of 256 tokens, left padding
of pages) may work here. There is no dropout, and there are no gradients of pages and caches: where one is asked for,
that is an error.

    functions   attention over q, k and v: dense, and stacked in one array
    varlen      the same of sequences of different lengths, packed behind one another
    kvcache     attention over a cache, to which new keys and values are appended
    options     what their common parameters mean in this library's words
"""

from __future__ import annotations

from rocmkern.flash_attn.functions import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
)
from rocmkern.flash_attn.kvcache import flash_attn_with_kvcache
from rocmkern.flash_attn.varlen import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
