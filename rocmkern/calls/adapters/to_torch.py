"""Arrays of any library as torch tensors that share their memory, and back: PyTorch is what carries them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.calls.arguments import FLOATS, accept
from rocmkern.runtime.manager import DeviceTensor
from rocmkern.runtime.torch_tensors import torch_of

_BFLOAT16 = FLOATS[2]


def as_torch(name: str, x: Any, dtypes: tuple[np.dtype, ...] = FLOATS) -> Any:
    """A torch tensor of the memory of an array; of a copy where PyTorch has no such strides.

    Parameters
    ----------
    name : str
        The argument's name, for errors.
    x : array
    dtypes : tuple of numpy.dtype
        What is allowed.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As operations do for an argument.
    """
    # deferred: optional dependency
    import torch

    accept(name, x, dtypes)
    if torch_of(x) is not None:
        return x.detach()
    if isinstance(x, DeviceTensor) and x.device.host_accessible:
        x = x.numpy_view()
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    if not x.flags.writeable or min(x.strides, default=0) < 0 or not x.flags.aligned:
        x = x.copy()
    if x.dtype == _BFLOAT16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def as_given(result: Any, given: Any) -> Any:
    """A contiguous torch tensor as an array of the kind of an argument."""
    # deferred: optional dependency
    import torch

    if isinstance(given, np.ndarray):
        if result.dtype == torch.bfloat16:
            return result.view(torch.int16).numpy().view(_BFLOAT16)
        return result.numpy()
    if isinstance(given, DeviceTensor):
        dtype = _BFLOAT16 if result.dtype == torch.bfloat16 else np.dtype(str(result.dtype).removeprefix("torch."))
        made = given.manager.empty(tuple(result.shape), dtype)
        as_torch("out", made).copy_(result)
        return made
    return result
