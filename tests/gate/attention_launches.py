"""What the gates of both kinds of GPU give to the attention kernel, and how exact they want its results."""

import ml_dtypes
import numpy as np

from rocmkern.ops.attention import tuning
from rocmkern.ops.attention.kernels.flash_attention import Config as AttentionConfig

FOREVER = 2**30
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: What a result's last rounding and the rounding of the weights may cost, relative to the largest value of a row.
TOLERANCE = {"float32": 2.0**-17, "float16": 2.0**-9, "bfloat16": 2.0**-6}
#: The arguments of attention that only pages need.
NO_PAGES = [np.zeros((0, 0), np.int32), np.zeros(0, np.int32), *[np.zeros(0, np.float32)] * 3]
NO_JOIN = [np.zeros((0, 0), np.int32), np.zeros(0, np.float32)]


def attention_config(arch, waves, value_dim=64, **settings):
    """A configuration of attention, with that of the join, which is compiled along."""
    return AttentionConfig(
        arch=arch, waves=waves, value_dim=value_dim, join=tuning.combine(arch, waves, value_dim), **settings
    )
