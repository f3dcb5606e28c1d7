"""The operations of the tile language, one declaration each (see `operation`); by concern, a file each.

Importing this package fills the table `operation.OPERATIONS`.
"""

from rocmkern.tile.language import (  # noqa: F401
    block,
    elementwise,
    memory,
    operators,
    pipeline,
    product,
    quantized,
    reduce,
    rotary,
    rows,
    softmax,
)
