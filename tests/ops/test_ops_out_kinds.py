"""Which arrays ``out=`` may write: those that say that they can be written, whatever their memory allows."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern.runtime.errors import ArgumentError


class Shared:
    """An array of a library that nobody here knows, with a DLPack capsule of one version."""

    def __init__(self, array, version):
        self.array, self.version = array, version

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, max_version=None, **_ignored):
        return self.array.__dlpack__(max_version=self.version)


def operations(x, out):
    """Calls of every family that write to `out`, which has the shape of x ``[4, 4]``."""
    heads = np.stack([x] * 4)
    return {
        "softmax": lambda: rocmkern.softmax(x, out=out),
        "rms_norm": lambda: rocmkern.rms_norm(x, x[0], out=out),
        "matmul": lambda: rocmkern.matmul(x, x, out=out),
        "swiglu": lambda: rocmkern.swiglu(x, x, out=out),
        "transpose": lambda: rocmkern.transpose(x, out=out),
        "swiglu, packed": lambda: rocmkern.swiglu(np.concatenate([x, x], -1), out=out),
        "merge_attention": lambda: rocmkern.merge_attention(heads, x, heads, x, out=(heads + 0, out)),
    }


@pytest.mark.parametrize("name", operations(np.zeros((4, 4), np.float32), None))
def test_an_old_capsule_of_an_unknown_library_is_not_written(name):
    memory = np.zeros((4, 4), np.float32)
    call = operations(np.ones((4, 4), np.float32), Shared(memory, None))[name]
    with pytest.raises(ArgumentError, match=r"out.*: got .*Shared.*say that it may be written"):
        call()
    assert not memory.any()


def test_a_new_capsule_says_whether_it_may_be_written():
    x, memory = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy before 2.1 writes old capsules only")
    rocmkern.softmax(x, out=Shared(memory, (1, 0)))
    assert (memory == 0.25).all()
    memory.flags.writeable = False
    with pytest.raises(ArgumentError, match="may be written"):
        rocmkern.softmax(x, out=Shared(memory, (1, 0)))


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_both_kinds_are_read(version):
    if version and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy before 2.1 writes old capsules only")
    assert (rocmkern.softmax(Shared(np.ones((4, 4), np.float32), version)) == 0.25).all()


def test_arrays_of_jax_never_change():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    a = jax.numpy.ones((4, 4))
    for call in operations(np.ones((4, 4), np.float32), a).values():
        with pytest.raises(ArgumentError, match="may be written"):
            call()
    assert (a == 1).all()
    np.testing.assert_array_equal(rocmkern.softmax(a), np.full((4, 4), 0.25))
