"""Checkpoints on disk: safetensors and GGUF files.

`open_checkpoint` gives the tensors by their names in the file, with shape and dtype but without their data, which
`DeviceTensor.lazy` brings to a device when it is used.

Files come from anywhere. They are read here, by position and never through mapped memory, and checked completely before
anything of them is used: whatever is wrong is a `CheckpointError` that names the file and what in it.
"""

from rocmkern.checkpoint.files import Checkpoint, open_checkpoint
from rocmkern.checkpoint.tensors import FileTensor

__all__ = ["Checkpoint", "FileTensor", "open_checkpoint"]
