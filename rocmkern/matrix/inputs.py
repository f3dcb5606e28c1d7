"""The arguments of a case, made from its id alone.

Arrays are drawn (`rocmkern.matrix.draw`) and then move into their memory layout: a view into a larger buffer that is
NaN everywhere else, so a read beside an array shows in the result and a write beside it shows in the buffer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rocmkern.matrix.case import Case
from rocmkern.matrix.draw import Draw, Undrawn, check_elements, numpy_dtype
from rocmkern.matrix.layouts import CONTIGUOUS, laid_out, repeats
from rocmkern.matrix.registry import Call
from rocmkern.matrix.schema import MAX_ELEMENTS, Masked
from rocmkern.matrix.spoilers import SPOILERS
from rocmkern.runtime.errors import MatrixError

# Elements on both sides of every array; 64 keep the first element on a 64-byte boundary for every dtype.
GUARD = 64
ALIGNMENT = 64
# Bit patterns of NaN that no arithmetic produces: an output element that still holds one was never written.
POISON = {2: {"f": 0x7E5A, "V": 0x7FDA}, 4: {"f": 0x7FC5A5A5}, 8: {"f": 0x7FF8A5A5A5A5A5A5}}
# Mean row entropy below this share of ln n means that the softmax is close to one-hot.
ONE_HOT_SHARE = 0.3


class OneHotError(MatrixError):
    """The inputs of a case make its softmax one-hot, and the row does not ask for that."""


def is_float(array: np.ndarray) -> bool:
    """Whether an array holds floating-point numbers, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def described_call(case: Case) -> Call:
    """The call of a case for its shapes: numbers are only drawn where the declaration writes to an array."""
    try:
        return case.operation.call(Undrawn(case))
    except ValueError:
        return case.operation.call(Draw(case))


def check_sizes(case: Case) -> None:
    """Raise a `MatrixError` if a case needs arrays that are larger than the schema allows; none of them is made."""
    extents = [part for extent in case.dims.values() for part in (extent if np.ndim(extent) else [extent])]
    if math.prod(max(int(part), 1) for part in extents) <= MAX_ELEMENTS:
        return
    try:
        shapes = case.operation.call(Undrawn(case)).out_shapes
    except MatrixError:
        raise
    except (MemoryError, ValueError):
        # A declaration that writes into its arrays, or makes one by other means, has asked for the others before.
        return
    for shape in shapes:
        check_elements(case, shape)


def make_call(case: Case) -> Call:
    """The arguments of a case.

    Raises
    ------
    MatrixError
        When the inputs make a softmax one-hot and the row does not ask for that by name.
    """
    call = case.operation.call(Draw(case))
    for shape in call.out_shapes:
        check_elements(case, shape)
    if case.facts.masked is not None:
        _fill_masked(case, call, case.facts.masked)
    call.arrays = {
        name: None if array is None else place(array, case.memory_of(name)) for name, array in call.arrays.items()
    }
    if case.facts.expect_error is None:
        _refuse_one_hot(case, call)
    return call


def make_bad_call(case: Case) -> dict[str, Any]:
    """Keyword arguments of a row with `expect_error`: the good call with the row's changes."""
    call = make_call(case)
    arguments = call.arguments
    for name, value in case.facts.arguments.items():
        arguments[name] = tuple(value) if isinstance(value, list) else value
    for name, spoiler in case.facts.spoil.items():
        good = arguments.get(name)
        if name == "out" and good is None:
            good = poisoned(call.out_shapes[0], output_dtype(case, 0), case.memory_of("out"))
        if good is None:
            raise MatrixError(f"case {case.id} has no argument {name} to spoil", file=case.facts.file)
        arguments[name] = SPOILERS[spoiler](good, call.arrays)
    return arguments


def output_dtype(case: Case, index: int) -> np.dtype:
    """dtype of one output of a case."""
    output = case.operation.outputs_of(case.features)[index]
    return numpy_dtype(output.dtype_of(case.dtype, case.features))


def _fill_masked(case: Case, call: Call, masked: Masked) -> None:
    assert case.operation.hidden is not None
    filled = 0
    for name, mask in case.operation.hidden(call, masked.where).items():
        array = call.arrays[name]
        assert array is not None
        mask = np.broadcast_to(mask, array.shape)
        array[mask] = float(masked.value)
        filled += int(mask.sum())
    if not filled:
        raise MatrixError(f"case {case.id} hides no element, so masked: proves nothing", file=case.facts.file)


def entropy_share(probabilities: np.ndarray, visible: np.ndarray) -> float:
    """Mean over rows with n > 1 visible keys of the row's entropy divided by ln n; 1.0 when there is no such row.

    Parameters
    ----------
    probabilities : ndarray
        ``[..., n]``, each row summing to 1 (or 0 for a row that sees nothing).
    visible : ndarray
        ``[...]``, number of visible keys of each row.
    """
    visible = np.broadcast_to(visible, probabilities.shape[:-1])
    rows = (visible > 1) & np.isfinite(probabilities).all(axis=-1)
    if not rows.any():
        return 1.0
    p = probabilities[rows]
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
    return float(np.mean(entropy / np.log(visible[rows])))


def _refuse_one_hot(case: Case, call: Call) -> None:
    if case.operation.probabilities is None or case.facts.one_hot is not None or case.category == "benchmark":
        return
    share = entropy_share(*case.operation.probabilities(call))
    if share < ONE_HOT_SHARE:
        raise OneHotError(
            f"case {case.id}: the inputs make the softmax one-hot (mean row entropy {share:.2f} ln n, at least "
            f"{ONE_HOT_SHARE} ln n is needed), which proves little; change the inputs or add one_hot: {{reason: ...}}",
            file=case.facts.file,
            line=case.facts.line,
            column=1,
        )


def place(values: np.ndarray, variant: str) -> np.ndarray:
    """The same values as a view into a guarded buffer, in a memory layout of `rocmkern.matrix.layouts`.

    Layouts that repeat elements repeat the first one of their axis, so there the values change.
    """
    if values.ndim == 0:
        return values
    view = _blank(values.shape, values.dtype, variant)
    if not repeats(variant):
        view[...] = values
        return view
    axis = repeated_axis(values.shape, variant)
    view[...] = values[tuple(slice(0, 1) if index == axis else slice(None) for index in range(values.ndim))]
    return np.broadcast_to(view, values.shape)


def poisoned(shape: tuple[int, ...], dtype: np.dtype, variant: str = "contiguous") -> np.ndarray:
    """An output array of which every byte, guards included, is poison."""
    return _blank(shape, dtype, variant, poison=True)


def fill_with_poison(array: np.ndarray) -> None:
    """Fill a contiguous array with poison; integers with -1 or the largest."""
    pattern, flat = POISON.get(array.itemsize, {}).get(array.dtype.kind), array.reshape(-1)
    if pattern is None:
        flat.view(np.uint8).fill(0xFF)
    else:
        flat.view(f"u{array.itemsize}").fill(pattern)


def is_poison(array: np.ndarray) -> np.ndarray:
    """Boolean array: which elements still hold the poison bits."""
    if array.dtype.kind not in POISON.get(array.itemsize, {}):
        return np.zeros(array.shape, bool)
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return bits == POISON[array.itemsize][array.dtype.kind]


def is_poison_of_runtime(array: np.ndarray) -> np.ndarray:
    """Boolean array: which floats have all bits set, as new buffers of the runtime have, and the NaN around inputs."""
    if array.dtype.kind not in POISON.get(array.itemsize, {}):
        return np.zeros(array.shape, bool)
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return bits == np.iinfo(bits.dtype).max


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def duplicate(view: np.ndarray) -> np.ndarray:
    """The same view of a copy of its buffer."""
    whole = owner(view)
    buffer = whole.reshape(-1).view(np.uint8)
    start = view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
    return np.ndarray(view.shape, view.dtype, buffer.copy(), start, view.strides)


def repeated_axis(shape: tuple[int, ...], variant: str) -> int:
    """The axis of which a layout that repeats elements repeats the first ones."""
    if variant.startswith("repeated"):
        return len(shape) - int(variant.rpartition("_")[2])
    if variant == "broadcast_last":
        return len(shape) - 1
    return next((axis for axis, size in enumerate(shape) if size > 1), 0)


def _blank(shape: tuple[int, ...], dtype: np.dtype, variant: str, poison: bool = False) -> np.ndarray:
    """A view of `shape` in the layout `variant` into a buffer of NaN (or of -1 for integers)."""

    def fresh(shape: tuple[int, ...], shift: int = 0) -> np.ndarray:
        return _fresh(shape, dtype, poison, shift)

    if variant == "transposed":
        return laid_out(shape, "transposed_1", fresh) if len(shape) > 1 else fresh(shape)
    if variant == "strided":
        if len(shape) == 1:
            return fresh((2 * shape[0],))[::2]
        return fresh((2 * shape[0], *shape[1:-1], shape[-1] + 3))[::2, ..., : shape[-1]]
    if variant.startswith("negative"):
        return np.flip(fresh(shape), 0 if variant == "negative" else -1)
    if variant.startswith("broadcast"):
        return laid_out(shape, f"repeated_{len(shape) - repeated_axis(shape, variant)}", fresh)
    if variant in (CONTIGUOUS, "offset"):
        return fresh(shape, 0 if variant == CONTIGUOUS else 1)
    return laid_out(shape, variant, fresh)


def _fresh(shape: tuple[int, ...], dtype: np.dtype, poison: bool, shift: int = 0) -> np.ndarray:
    size = int(np.prod(shape))
    raw = np.empty((size + 2 * GUARD + shift) * dtype.itemsize + ALIGNMENT, np.uint8)
    aligned = -raw.__array_interface__["data"][0] % ALIGNMENT
    count = size + 2 * GUARD + shift
    elements = raw[aligned : aligned + count * dtype.itemsize].view(dtype)
    raw[:] = 0xFF
    if poison and dtype.kind in POISON.get(dtype.itemsize, {}):
        elements.view(f"u{dtype.itemsize}")[:] = POISON[dtype.itemsize][dtype.kind]
    return elements[GUARD + shift : GUARD + shift + size].reshape(shape)
