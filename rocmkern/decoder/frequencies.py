"""How a decoder's heads are turned: by the base and the scaling of its configuration, or by its file's own factors.

GGUF files of Llama 3 hold the divisors of the frequencies that follow from their scaling, as ``rope_freqs.weight``
``[head_dim / 2]``, and do not name the scaling. What the file says counts: a scaling in the configuration must then be
the one that gives these factors, which is checked, and is not applied once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.checkpoint import FileTensor
from rocmkern.decoder.config import DecoderConfig
from rocmkern.ops.rotary.scaling import accept_scaling, attention_factor, frequencies
from rocmkern.runtime.errors import CheckpointError
from rocmkern.runtime.manager import DeviceTensor

#: Name of the weight, and of the tensor in GGUF files.
FREQ_FACTORS, TENSOR = "rope_freq_factors", "rope_freqs.weight"
# Files have float32 numbers that were computed in float32.
_TOLERANCE = 1e-4


def read_factors(tensor: FileTensor, config: DecoderConfig) -> np.ndarray:
    """The factors of a file in host memory, checked.

    Raises
    ------
    CheckpointError
        They are no finite positive numbers, or contradict the configuration.
    """
    if tensor.format is not None or tensor.dtype.kind not in "fV":
        raise CheckpointError(f"{tensor.name} is {tensor.format or tensor.dtype.name}, not a float dtype")
    factors = np.concatenate([piece.astype(np.float32).reshape(-1) for piece in tensor.pieces()])
    rotation(config, factors)
    return factors


def rotation(config: DecoderConfig, factors: Any) -> dict[str, Any]:
    """Keyword arguments of `rocmkern.rope` for a decoder with these factors, or None.

    Raises
    ------
    CheckpointError
        The factors are no finite positive numbers, one for each pair, or contradict the configuration.
    """
    turned = {"variant": config.rope_variant, "base": config.rope_base}
    if factors is None:
        return turned | {"scaling": config.rope_scaling}
    numbers = np.asarray(factors.to_numpy() if isinstance(factors, DeviceTensor) else factors).astype(np.float64)
    if numbers.shape != (config.head_dim // 2,):
        raise CheckpointError(f"{TENSOR} has shape {numbers.shape}; a head has {config.head_dim // 2} frequencies")
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
    if wrong.size:
        raise CheckpointError(f"{TENSOR} has {numbers[wrong[0]]} at index {wrong[0]}, not a finite positive number")
    _agree(config, numbers)
    return turned | {"freq_factors": tuple(numbers.tolist())}


def _agree(config: DecoderConfig, factors: np.ndarray) -> None:
    """Whether a scaling of the configuration, if there is one, gives these factors."""
    scaling = accept_scaling(config.rope_scaling)
    if scaling is None:
        return
    plain, scaled = (frequencies(config.head_dim, config.rope_base, kind) for kind in (None, scaling))
    implied = plain / np.maximum(scaled, 1)
    if attention_factor(scaling) != 1 or not np.allclose(implied, factors, rtol=_TOLERANCE, atol=0):
        raise CheckpointError(
            f"{TENSOR} divides the frequencies by {factors.min():g} to {factors.max():g}, which is not what "
            f"rope_scaling={config.rope_scaling!r} does: leave rope_scaling out, for the file's own factors are used"
        )
