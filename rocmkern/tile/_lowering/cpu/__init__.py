"""The tile language on a CPU: a block is one thread, and a tile is a small float32 buffer.

Layout. With 16 or more rows a tile is stored column by column, ``value[c * m + r]``, so that SIMD lanes run over rows:
row statistics are vertical, and a product reads the keys in place, one broadcast number at a time. With fewer rows
(decoding) it is stored row by row, ``value[r * n + c]``, and lanes run over columns. `Rows` are one LLVM vector with an
element per row. LLVM splits vectors to what the host has; only the matrix micro-kernel and the polynomials look at the
host's width.

A stage is a view of the source where that holds float32 in unit stride, and a converted copy of the window otherwise.
"""

from rocmkern.tile._lowering.cpu.backend import bound_config
from rocmkern.tile._lowering.cpu.install import install

__all__ = ["bound_config", "install"]
