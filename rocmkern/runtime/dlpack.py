"""DLPack capsules, read and written through ctypes: both the versioned kind (1.0 and later) and the old one.

Reading takes the capsule over, as the standard asks: it is renamed, and the producer's deleter is called once, when the
result's owner goes. Writing lets NumPy make the capsule of a view over our memory and then corrects device and dtype in
it. The capsule's destructor and deleter must be C code: a capsule may die while an exception is on its way, and Python
code called there would lose the exception. NumPy never reads the memory, which may be a GPU's.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.runtime.errors import ArgumentTypeError
from rocmkern.runtime.foreign import ForeignArray
from rocmkern.runtime.geometry import contiguous_strides
from rocmkern.runtime.torch_tensors import plain_tensor, torch_of

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST = 1, 2, 3, 10, 11
DEVICE_KINDS = {CPU: "host", CUDA: "cuda", CUDA_HOST: "host", ROCM: "hip", ROCM_HOST: "host"}
DEVICE_TYPES = {"host": CPU, "cuda": CUDA, "hip": ROCM}
_OTHER_DEVICES = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 12: "external", 13: "CUDA managed", 14: "oneAPI",
                  15: "WebGPU", 16: "Hexagon", 17: "MAIA", 18: "Trainium"}  # fmt: skip

READ_ONLY = 1
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_NUMPY_KINDS = {_INT: "i", _UINT: "u", _FLOAT: "f", _COMPLEX: "c"}
_BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_LAYOUTS: dict[bytes, type[ctypes.Structure]] = {b"dltensor_versioned": _ManagedVersioned, b"dltensor": _Managed}
# A capsule keeps only the address of its name, and may outlive this module at exit: the names are never freed.
_USED_NAMES = {name: b"used_" + name for name in _LAYOUTS}
for _name in _USED_NAMES.values():
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_name))

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _Owner:
    """Owns a managed tensor that was taken over: calls its deleter once, when it goes."""

    def __init__(self, pointer: int, deleter: int | None):
        self._pointer, self._deleter = pointer, deleter

    def __del__(self) -> None:
        if self._deleter:
            _Deleter(self._deleter)(self._pointer)


def _open(capsule: Any) -> tuple[bytes, int, ctypes.Structure] | None:
    for name, layout in _LAYOUTS.items():
        if _is_valid(capsule, name):
            pointer = _get_pointer(capsule, name)
            return name, pointer, layout.from_address(pointer)
    return None


def _dtype(tensor: _Tensor, argument: str) -> np.dtype:
    code, bits, lanes = tensor.code, tensor.bits, tensor.lanes
    if lanes == 1 and bits % 8 == 0:
        if (code, bits) == (_BFLOAT, 16):
            return _BFLOAT16
        if (code, bits) == (_BOOL, 8):
            return np.dtype(bool)
        if code in _NUMPY_KINDS:
            try:
                return np.dtype(f"{_NUMPY_KINDS[code]}{bits // 8}")
            except TypeError:
                pass
    raise ArgumentTypeError(
        argument,
        f"DLPack type code {code} with {bits} bits and {lanes} lanes",
        "bool, integers, floats, complex numbers and bfloat16 of one lane",
    )


def check_device_type(device_type: int, argument: str = "array") -> str:
    """Return ``"host"``, ``"cuda"`` or ``"hip"`` for a DLPack device type, or raise `ArgumentTypeError`."""
    kind = DEVICE_KINDS.get(int(device_type))
    if kind is None:
        name = _OTHER_DEVICES.get(int(device_type), "unknown")
        allowed = "memory of the CPU (1), CUDA (2, 3) or ROCm (10, 11)"
        raise ArgumentTypeError(argument, f"DLPack device type {int(device_type)} ({name})", allowed)
    return kind


def read_capsule(capsule: Any, argument: str = "array") -> ForeignArray:
    """Take a DLPack capsule over and return what it says.

    Parameters
    ----------
    capsule : PyCapsule
        Named ``dltensor`` or ``dltensor_versioned``; it is consumed (renamed). If it is refused it is left as it was,
        and its own destructor cleans up.
    argument : str
        Name of the argument for errors.

    Raises
    ------
    ArgumentTypeError
        For something that is no fresh capsule, a newer major version, a device or dtype that is not supported.
    """
    opened = _open(capsule)
    if opened is None:
        allowed = "a DLPack capsule that nobody has consumed"
        raise ArgumentTypeError(argument, repr(capsule), allowed)
    name, pointer, managed = opened
    versioned = isinstance(managed, _ManagedVersioned)
    if versioned and managed.major != 1:
        raise ArgumentTypeError(argument, f"DLPack version {managed.major}.{managed.minor}", "version 1.x or older")
    tensor = managed.tensor
    kind, dtype = check_device_type(tensor.device_type, argument), _dtype(tensor, argument)
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    else:
        strides = contiguous_strides(shape, dtype.itemsize)
    address = (tensor.data or 0) + tensor.byte_offset if math.prod(shape) else 0
    read_only = bool(managed.flags & READ_ONLY) if versioned else None
    device_index = tensor.device_id
    _set_name(capsule, _USED_NAMES[name])
    owner = _Owner(pointer, managed.deleter)
    return ForeignArray(address, shape, strides, dtype, kind, device_index, read_only, None, owner)


def read_dlpack(array: Any, *, stream: int | None = None, argument: str = "array") -> ForeignArray:
    """Ask an object for its memory through ``__dlpack__``.

    Parameters
    ----------
    array : object
        With ``__dlpack__`` and ``__dlpack_device__``.
    stream : int, optional
        Stream that the data must be ready on, for GPU memory; a host array is asked without one.
    argument : str
        Name of the argument for errors.

    Raises
    ------
    ArgumentTypeError
        As `read_capsule`. What the producer raises passes through.
    ArgumentError
        For a tensor of PyTorch that is not plain memory, or that requires a gradient where gradients are on.
    """
    torch = torch_of(array)
    if torch is not None:
        array = plain_tensor(torch, array, argument)
    device_type, _ = array.__dlpack_device__()
    on_host = check_device_type(device_type, argument) == "host"
    keywords = {} if on_host or stream is None else {"stream": stream}
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **keywords)
    except TypeError:
        # Producers from before DLPack 1.0 do not know the keyword.
        capsule = array.__dlpack__(**keywords)
    return read_capsule(capsule, argument)


def write_capsule(view: np.ndarray, *, device_type: int, device_index: int, max_version: tuple[int, int] | None) -> Any:
    """Return a capsule over the memory of `view`.

    Parameters
    ----------
    view : numpy.ndarray
        A view over the memory (of whatever device; it is not read), whose ``base`` keeps the memory alive.
    device_type, device_index : int
        DLPack's type and the number of the device.
    max_version : (int, int) or None
        Newest version that the consumer knows; None asks for the old kind.

    Raises
    ------
    BufferError
        If the array cannot be exported: read-only memory in an old capsule, or a dtype that DLPack lacks.
    """
    bfloat16 = view.dtype == _BFLOAT16
    if bfloat16:
        view = view.view(np.uint16)
    if max_version is not None and max_version[0] >= 1 and np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        capsule = view.__dlpack__(max_version=(1, 0))
    else:
        capsule = view.__dlpack__()
    opened = _open(capsule)
    assert opened is not None, "NumPy made a capsule of an unknown kind"
    tensor = opened[2].tensor
    tensor.device_type, tensor.device_id = device_type, device_index
    if bfloat16:
        tensor.code = _BFLOAT
    return capsule
