"""Checkpoints on disk: safetensors and GGUF files, memory-mapped by the formats' own libraries.

`open_checkpoint` gives the tensors by their names in the file, with shape and dtype but without their data, which
`DeviceTensor.lazy` brings to a device when it is used.
"""

from rocmkern.checkpoint.files import Checkpoint, FileTensor, open_checkpoint

__all__ = ["Checkpoint", "FileTensor", "open_checkpoint"]
