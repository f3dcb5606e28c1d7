"""What the gates of both kinds of GPU give to the attention kernel, and how exact they want its results."""

import ml_dtypes
import numpy as np

from rocmkern.ops.attention import tuning
from rocmkern.ops.attention.kernels.flash_attention import Config as AttentionConfig
from rocmkern.ops.attention.kernels.flash_attention import flash_attention

FOREVER = 2**30
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: What a result's last rounding and the rounding of the weights may cost, relative to the largest value of a row.
TOLERANCE = {"float32": 2.0**-17, "float16": 2.0**-9, "bfloat16": 2.0**-6}


def _absent(*names):
    """Empty arrays for optional arguments of the kernel."""
    parameters = dict(flash_attention.parameters)
    return [np.zeros((0,) * parameters[name].ndim, parameters[name].absent) for name in names]


#: The arguments of attention that only lengths and pages need, and those that only joining splits does.
NO_PAGES = _absent("block_table", "seqlens_k", "leftpad_k", "key_scale", "value_scale", "error")
NO_JOIN = _absent("arrivals", "parts")


def attention_config(arch, waves, value_dim=64, **settings):
    """A configuration of attention, with that of the join, which is compiled along."""
    return AttentionConfig(
        arch=arch, waves=waves, value_dim=value_dim, join=tuning.combine(arch, waves, value_dim), **settings
    )
