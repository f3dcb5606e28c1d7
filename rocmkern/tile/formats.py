"""Quantized formats: numbers in blocks of bytes with shared scales, as the tile language reads them.

Each `Format` has its meaning in NumPy (`Format.decode`) and one piece of LLVM IR for all targets (`Format.emit`), which
decodes a run of consecutive elements of a block: 16 at a time as a vector on a CPU, a few of them one by one in a lane
of a GPU. What a target adds is `BlockReader`: how bytes of a block are read. A run comes as numbers with the scale that
they share (`Run`): a product may scale its sum instead of every element.

Sources: OCP Microscaling Formats (MX) specification v1.0; the block structures of ggml.

============  ========  =====  ======================================================================================
format        elements  bytes  layout of a block
============  ========  =====  ======================================================================================
mxfp4         32        17     E8M0 scale; byte j: element j in its low, j + 16 in its high four bits
mxfp4_ocp     32        17     E8M0 scale; byte j: element 2j in its low, 2j + 1 in its high four bits
mxfp6_e2m3    32        25     E8M0 scale; 6 bits an element, the first one lowest
mxfp6_e3m2    32        25     E8M0 scale; 6 bits an element, the first one lowest
mxfp8_e4m3    32        33     E8M0 scale; a byte an element
mxfp8_e5m2    32        33     E8M0 scale; a byte an element
q4_0          32        18     float16 d; byte j: as mxfp4. ``d * (q - 8)``
q4_1          32        20     float16 d and m; byte j: as mxfp4. ``d * q + m``
q5_0          32        22     float16 d; 32 bits, the fifth one of every element; byte j: as mxfp4. ``d * (q - 16)``
q5_1          32        24     float16 d and m; 32 bits and bytes: as q5_0. ``d * q + m``
q8_0          32        34     float16 d; int8. ``d * q``
q4_k          256       144    float16 d and m; 12 bytes: a 6-bit scale and minimum for every 32 elements; for every 64
                               elements 32 bytes, whose low four bits come first. ``(d * scale) * q - (m * minimum)``
q5_k          256       176    float16 d and m, and 12 bytes: as q4_k; 32 bytes, of which bit i of byte j is the fifth
                               one of element 32i + j; the others: as q4_k. ``(d * scale) * q - (m * minimum)``
q6_k          256       210    for every 128 elements 64 bytes of low four bits, then for every 128 elements 32 bytes
                               of high two bits; an int8 scale for every 16; float16 d. ``(d * scale) * (q - 32)``
============  ========  =====  ======================================================================================

Every product is exact in float32 but the last operation, which rounds once to nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rocmkern.runtime.errors import TileError
from rocmkern.tile import codes

if TYPE_CHECKING:
    from llvmlite import ir

#: Runs of elements that start at a multiple of this share a scale, a minimum, and the position of their bits in bytes.
RUN = 16
#: Formats of which a lane of a GPU reads nothing but numbers that float16 holds: elements side by side are digits of
#: bytes side by side (`lanes.PairReader`).
IN_PAIRS = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4", "mxfp8_e4m3", "mxfp8_e5m2",
)  # fmt: skip


class BlockReader(Protocol):
    """Reads one block: offsets are i32 values in bytes from its start.

    A reader may give numbers in another form than float32, for those that use it: then all of `nibbles`,
    `whole_bytes`, `joined_bits` and `five_bits` do.
    """

    def byte(self, offset: ir.Value) -> ir.Value:
        """One byte as an i32, the same for all lanes of a run."""

    def short(self, offset: ir.Value) -> ir.Value:
        """Two bytes, the first one low, as an i32, the same for all lanes of a run."""

    def word(self, offset: ir.Value) -> ir.Value:
        """Four bytes, the first one low, as an i32, the same for all lanes of a run."""

    def half(self, offset: ir.Value) -> ir.Value:
        """A float16 as a float32, the same for all lanes of a run."""

    def power(self, offset: ir.Value) -> ir.Value:
        """An E8M0 scale as a float32, the same for all lanes of a run."""

    def fields(self, offset: ir.Value, count: int, width: int, step: int = 1) -> list[ir.Value]:
        """``count`` consecutive fields of ``width`` bits (4, 6, 8), lowest bits first, from the start of a byte.

        Each as an i32, or several of them in a vector: the emitters work on either. They fill whole bytes. An offset
        that is no constant is a multiple of ``step``.
        """

    def nibbles(
        self, offset: ir.Value, count: int, shift: ir.Value, numbers: tuple[float, ...], step: int = 1
    ) -> tuple[list[Any], float] | None:
        """Float32 ``numbers[byte >> shift & 15]`` of ``count`` bytes, divided by a power of two, and that power.

        ``shift`` is 0 or 4; ``step`` is as for `fields`. None where the target has nothing better than `fields`
        and `lookup`.
        """

    def whole_bytes(self, kind: str, offset: ir.Value, count: int) -> tuple[list[Any], float] | None:
        """Float32 of ``count`` bytes that are an ``"int8"`` or a small float, divided by a power of two; that power.

        None where the target has nothing better than `fields`.
        """

    def joined_bits(
        self,
        low: ir.Value,
        low_shift: ir.Value,
        high: ir.Value,
        high_shift: ir.Value,
        width: int,
        less: int,
        count: int,
    ) -> list[Any] | None:
        """Float32 of ``count`` numbers less a constant, whose four low and ``width`` high bits (1 or 2) are in bytes at
        two offsets.

        Offsets that are no constants are multiples of ``count``. None where the target has nothing better than
        `fields`.
        """

    def five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, less: int, count: int
    ) -> list[Any]:
        """Float32 of ``count`` numbers less a constant, whose four low bits are ``byte >> shift & 15`` of bytes at an
        offset, and whose fifth bits lie side by side from bit ``first`` of the four bytes at ``plane`` on.

        ``shift`` is 0 or 4; ``plane`` is a constant.
        """

    def lookup(self, numbers: tuple[float, ...], lanes: list[ir.Value]) -> list[Any] | None:
        """``numbers[code & 15]`` for each code, where the target does that in one instruction; else None."""


@dataclass(frozen=True)
class Run:
    """Elements of a block that share a scale, in LLVM IR: ``number * factor * scale - minimum``.

    Attributes
    ----------
    numbers : list
        float32 values, or vectors of them, as `BlockReader.fields` makes lanes; or what the reader makes of numbers.
    scale : float32 value
    minimum : float32 value or None
        None is 0.
    factor : float
        Power of two that the numbers lack.
    """

    numbers: list[Any]
    scale: ir.Value
    minimum: ir.Value | None = None
    factor: float = 1.0

    def elements(self, b: ir.IRBuilder) -> list[ir.Value]:
        """The elements; every product is exact, and so is the result where there is no minimum."""
        # deferred: start-up
        from rocmkern.tile._lowering.shared.ir_types import const

        numbers = self.numbers if self.factor == 1 else [b.fmul(x, const(x.type, self.factor)) for x in self.numbers]
        scaled = [b.fmul(x, _spread(b, self.scale, x)) for x in numbers]
        return scaled if self.minimum is None else [b.fsub(x, _spread(b, self.minimum, x)) for x in scaled]


@dataclass(frozen=True)
class Format:
    """One quantized format.

    Attributes
    ----------
    name : str
    elements, nbytes : int
        Elements and bytes of a block. The elements are a power of two.
    group : int
        Consecutive elements, from the first one of a block on, that share scale and minimum.
    decode : callable
        ``decode(blocks)``: uint8 ``[..., nbytes]`` to float32 ``[..., elements]``.
    emit : callable
        ``emit(b, reader, first, count)``: the `Run` of elements ``first`` (an i32 value) to ``first + count - 1`` of a
        block. ``count`` is 1, 4, 8 or 16 and divides ``first``.
    """

    name: str
    elements: int
    nbytes: int
    group: int
    decode: Callable[[np.ndarray], np.ndarray]
    emit: Callable[[ir.IRBuilder, BlockReader, ir.Value, int], Run]

    def columns(self, row_bytes: int) -> int:
        """Elements of a row of so many bytes: whole blocks only."""
        return row_bytes // self.nbytes * self.elements


# --------------------------------------------------------------------------------------------------- meaning, in NumPy


def _half(blocks: np.ndarray, offset: int) -> np.ndarray:
    """float16 at a byte offset of each block, as float32 ``[..., 1]``."""
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view("<f2").astype(np.float32)


def _low_then_high(packed: np.ndarray) -> np.ndarray:
    """The low halves of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _mx(name: str, elements_of: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def decode(blocks: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return codes.decode(name, elements_of(blocks[..., 1:])) * codes.decode_e8m0(blocks[..., :1])

    return decode


def _in_pairs(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _six_bits(packed: np.ndarray) -> np.ndarray:
    """Four elements in every three bytes."""
    x = packed.reshape(*packed.shape[:-1], -1, 3).astype(np.uint32)
    word = x[..., 0] | x[..., 1] << 8 | x[..., 2] << 16
    return np.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], axis=-1).reshape(*packed.shape[:-1], -1)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * (_low_then_high(blocks[..., 2:]).astype(np.float32) - 8)


def _fifth_bits(blocks: np.ndarray, offset: int) -> np.ndarray:
    """32 bits at a byte offset of each block, as what they count in a number of five bits: ``[..., 32]``."""
    return np.unpackbits(blocks[..., offset : offset + 4], axis=-1, bitorder="little") << 4


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * _low_then_high(blocks[..., 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    q = _low_then_high(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (q.astype(np.float32) - 16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    q = _low_then_high(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * q.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * blocks[..., 2:].astype(np.int8).astype(np.float32)


def _scaled_groups(blocks: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Elements of q4_k and q5_k of their codes ``[..., 8, 32]``."""
    a, b, c = (blocks[..., i : i + 4] for i in (4, 8, 12))
    scale = np.concatenate([a & 63, c & 15 | (a >> 6) << 4], axis=-1).astype(np.float32)
    minimum = np.concatenate([b & 63, c >> 4 | (b >> 6) << 4], axis=-1).astype(np.float32)
    scale, minimum = _half(blocks, 0) * scale, _half(blocks, 2) * minimum
    return (scale[..., None] * q.astype(np.float32) - minimum[..., None]).reshape(*blocks.shape[:-1], 256)


def _nibbles_of_groups(packed: np.ndarray) -> np.ndarray:
    """``[..., 128]`` bytes to ``[..., 8, 32]``."""
    lead = packed.shape[:-1]
    return _low_then_high(packed.reshape(*lead, 4, 32)).reshape(*lead, 8, 32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _scaled_groups(blocks, _nibbles_of_groups(blocks[..., 16:]))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _scaled_groups(blocks, _nibbles_of_groups(blocks[..., 48:]) | fifth << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    lead = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*lead, 2, 64)
    high = blocks[..., 128:192].reshape(*lead, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = _low_then_high(low).reshape(*lead, 2, 4, 32) | high << 4
    scale = _half(blocks, 208) * blocks[..., 192:208].astype(np.int8).astype(np.float32)
    q = q.reshape(*lead, 16, 16).astype(np.float32) - 32
    return (scale[..., None] * q).reshape(*lead, 256)


# ------------------------------------------------------------------------------------------------- the same, in LLVM IR
# Integers become floats by putting them into the mantissa of 2 ** 23: exact, and as cheap as an addition everywhere.


def _integer(x: int) -> Any:
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import I32, const

    return const(I32, x)


def _add(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.add(x, y if not isinstance(y, int) else _integer(y))


def _each(lanes: list[Any], body: Callable[[Any], Any]) -> list[Any]:
    return [body(x) for x in lanes]


def _spread(b: ir.IRBuilder, x: Any, like: Any) -> Any:
    """A scalar in every element of a vector that is like ``like``; itself beside a scalar."""
    # deferred: start-up
    from llvmlite import ir

    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import I32, const

    if not isinstance(like.type, ir.VectorType):
        return x
    n = like.type.count
    v = b.insert_element(ir.Constant(ir.VectorType(x.type, n), ir.Undefined), x, const(I32, 0))
    return b.shuffle_vector(v, v, const(ir.VectorType(I32, n), 0))


def _float(b: ir.IRBuilder, x: Any, less: int) -> Any:
    """float32 of ``x - less`` for an unsigned x below 2 ** 23."""
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import F32, const

    bits = b.bitcast(b.or_(x, const(x.type, 0x4B000000)), codes.like(x.type, F32))
    return b.fsub(bits, const(bits.type, 2.0**23 + less))


def _signed_byte(b: ir.IRBuilder, x: Any) -> Any:
    """float32 of a byte that is an int8."""
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import const

    return _float(b, b.xor(x, const(x.type, 0x80)), 0x80)


def _bits(b: ir.IRBuilder, x: Any, shift: ir.Value, mask: int) -> Any:
    """``x >> shift & mask``; the shift is a scalar."""
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import const

    return b.and_(b.lshr(x, _spread(b, shift, x)), const(x.type, mask))


def _looked_up(
    b: ir.IRBuilder, reader: BlockReader, numbers: Any, lanes: list[Any], decode: Callable[[Any], Any]
) -> list[Any]:
    """``numbers[code]`` of the low four bits of the lanes; ``decode(code)`` computes it."""
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import const

    found = reader.lookup(tuple(map(float, numbers)), lanes)
    if found is None:
        found = _each(lanes, lambda x: decode(b.and_(x, const(x.type, 15))))
    return found


def _packed(
    b: ir.IRBuilder, reader: BlockReader, start: int, length: int, width: int, first: ir.Value, count: int
) -> list[Any]:
    """Elements ``first`` .. of fields of ``width`` bits that fill ``length`` bytes from ``start`` on."""
    bit = b.mul(first, _integer(width))
    byte = b.lshr(bit, _integer(3))
    if count * width % 8 == 0:
        return reader.fields(_add(b, byte, start), count, width)
    # One element somewhere in two bytes, none of them beyond the last.
    last = _integer(length - 2)
    byte = b.select(b.icmp_unsigned("<", byte, last), byte, last)
    pair = reader.short(_add(b, byte, start))
    return [_bits(b, pair, b.sub(bit, b.shl(byte, _integer(3))), (1 << width) - 1)]


def _nibbles(
    b: ir.IRBuilder,
    reader: BlockReader,
    at: ir.Value,
    count: int,
    shift: ir.Value,
    numbers: Any,
    decode: Callable[[Any], Any],
    step: int = 1,
) -> tuple[list[Any], float]:
    """``numbers[byte >> shift & 15]`` of bytes, as `BlockReader.nibbles`; ``decode(code)`` computes one."""
    found = reader.nibbles(at, count, shift, tuple(map(float, numbers)), step)
    if found is not None:
        return found
    lanes = _each(reader.fields(at, count, 8, step), lambda x: b.lshr(x, _spread(b, shift, x)))
    return _looked_up(b, reader, numbers, lanes, decode), 1.0


def _halves(
    b: ir.IRBuilder,
    reader: BlockReader,
    start: int,
    first: ir.Value,
    count: int,
    numbers: Any,
    decode: Callable[[Any], Any],
) -> tuple[list[Any], float]:
    """`_nibbles` of 16 bytes whose low halves come first."""
    at, shift = b.and_(first, _integer(15)), b.lshr(b.and_(first, _integer(16)), _integer(2))
    return _nibbles(b, reader, _add(b, at, start), count, shift, numbers, decode)


def _emit_mx(name: str, width: int = 0) -> Callable[[ir.IRBuilder, BlockReader, ir.Value, int], Run]:
    """An MX format with elements of ``width`` bits one after the other; 0: low halves, then high halves."""

    def emit(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
        scale = reader.power(_integer(0))
        numbers = codes.SMALL_FLOATS[name].table()

        def decode(x: Any) -> Any:
            return codes.emit_decode(b, name, x)

        if not width:
            elements, factor = _halves(b, reader, 1, first, count, numbers, decode)
            return Run(elements, scale, None, factor)
        found = reader.whole_bytes(name, _add(b, first, 1), count) if width == 8 else None
        if found:
            elements, factor = found
            return Run(elements, scale, None, factor)
        elements = _packed(b, reader, 1, 32 * width // 8, width, first, count)
        return Run(_looked_up(b, reader, numbers, elements, decode) if width == 4 else _each(elements, decode), scale)

    return emit


def _emit_q4_0(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    d = reader.half(_integer(0))
    numbers, factor = _halves(b, reader, 2, first, count, range(-8, 8), lambda x: _float(b, x, 8))
    return Run(numbers, d, None, factor)


def _minimum(b: ir.IRBuilder, m: Any) -> Any:
    """What is subtracted where a float32 is added."""
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import const

    return b.fsub(const(m.type, -0.0), m)


def _emit_q4_1(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    d, m = reader.half(_integer(0)), reader.half(_integer(2))
    numbers, factor = _halves(b, reader, 4, first, count, range(16), lambda x: _float(b, x, 0))
    return Run(numbers, d, _minimum(b, m), factor)


def _five_bits(b: ir.IRBuilder, reader: BlockReader, plane: int, first: ir.Value, less: int, count: int) -> list[Any]:
    """Numbers of five bits: the fifth ones in four bytes from ``plane`` on, the others in 16 bytes behind them."""
    at, shift = b.and_(first, _integer(15)), b.lshr(b.and_(first, _integer(16)), _integer(2))
    return reader.five_bits(_add(b, at, plane + 4), shift, _integer(plane), first, less, count)


def _emit_q5_0(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    d = reader.half(_integer(0))
    return Run(_five_bits(b, reader, 2, first, 16, count), d)


def _emit_q5_1(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    d, m = reader.half(_integer(0)), reader.half(_integer(2))
    return Run(_five_bits(b, reader, 4, first, 0, count), d, _minimum(b, m))


def _emit_q8_0(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    d = reader.half(_integer(0))
    at = _add(b, first, 2)
    found = reader.whole_bytes("int8", at, count)
    if found:
        return Run(found[0], d, None, found[1])
    return Run(_each(reader.fields(at, count, 8), lambda x: _signed_byte(b, x)), d)


def _scale_and_minimum(b: ir.IRBuilder, reader: BlockReader, group: ir.Value) -> tuple[Any, Any]:
    """Those of a group of 32 elements of q4_k and q5_k."""
    early = b.icmp_unsigned("==", b.lshr(group, _integer(2)), _integer(0))
    byte = b.shl(b.and_(group, _integer(3)), _integer(3))
    x, y, z = (reader.word(_integer(start)) for start in (4, 8, 12))

    def six_bits(low: ir.Value, high: ir.Value) -> Any:
        """float32 of the group's six bits, by those of four groups at once."""
        late = b.or_(b.and_(high, _integer(0x0F0F0F0F)), b.and_(b.lshr(low, _integer(2)), _integer(0x30303030)))
        four = b.select(early, b.and_(low, _integer(0x3F3F3F3F)), late)
        return _float(b, b.and_(b.lshr(four, byte), _integer(255)), 0)

    scale = b.fmul(reader.half(_integer(0)), six_bits(x, z))
    return scale, b.fmul(reader.half(_integer(2)), six_bits(y, b.lshr(z, _integer(4))))


def _nibble_of_group(b: ir.IRBuilder, start: int, group: ir.Value, column: ir.Value) -> tuple[Any, Any]:
    """Where the low four bits of an element of q4_k and q5_k are: a byte's offset, and by how much it is shifted."""
    at = _add(b, b.or_(b.shl(b.lshr(group, _integer(1)), _integer(5)), column), start)
    return at, b.shl(b.and_(group, _integer(1)), _integer(2))


def _emit_q4_k(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    group = b.lshr(first, _integer(5))
    scale, minimum = _scale_and_minimum(b, reader, group)
    at, shift = _nibble_of_group(b, 16, group, b.and_(first, _integer(31)))
    numbers, factor = _nibbles(b, reader, at, count, shift, range(16), lambda x: _float(b, x, 0), step=count)
    return Run(numbers, scale, minimum, factor)


def _emit_q5_k(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    group, column = b.lshr(first, _integer(5)), b.and_(first, _integer(31))
    scale, minimum = _scale_and_minimum(b, reader, group)
    at, shift = _nibble_of_group(b, 48, group, column)
    return Run(_joined_bits(b, reader, at, shift, _add(b, column, 16), group, 1, 0, count), scale, minimum)


def _emit_q6_k(b: ir.IRBuilder, reader: BlockReader, first: ir.Value, count: int) -> Run:
    half, quarter = b.lshr(first, _integer(7)), b.and_(b.lshr(first, _integer(5)), _integer(3))
    column = b.and_(first, _integer(31))
    low_at = b.or_(b.shl(half, _integer(6)), b.shl(b.and_(quarter, _integer(1)), _integer(5)))
    low_shift = b.shl(b.lshr(quarter, _integer(1)), _integer(2))
    high_at, high_shift = _add(b, b.shl(half, _integer(5)), 128), b.shl(quarter, _integer(1))
    low_at, high_at = b.add(low_at, column), b.add(high_at, column)
    scale = _signed_byte(b, reader.byte(_add(b, b.lshr(first, _integer(4)), 192)))
    scale = b.fmul(reader.half(_integer(208)), scale)
    return Run(_joined_bits(b, reader, low_at, low_shift, high_at, high_shift, 2, 32, count), scale)


def _joined_bits(
    b: ir.IRBuilder,
    reader: BlockReader,
    low: ir.Value,
    low_shift: ir.Value,
    high: ir.Value,
    high_shift: ir.Value,
    width: int,
    less: int,
    count: int,
) -> list[Any]:
    """`BlockReader.joined_bits`, or what `fields` makes of it."""
    numbers = reader.joined_bits(low, low_shift, high, high_shift, width, less, count)
    if numbers is not None:
        return numbers

    def one(x: Any, y: Any) -> Any:
        # deferred: start-up
        from rocmkern.tile._lowering.shared.ir_types import const

        top = b.shl(_bits(b, y, high_shift, (1 << width) - 1), const(y.type, 4))
        return _float(b, b.or_(_bits(b, x, low_shift, 15), top), less)

    lows, highs = (reader.fields(at, count, 8, step=count) for at in (low, high))
    return [one(x, y) for x, y in zip(lows, highs, strict=True)]


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("mxfp4", 32, 17, 32, _mx("e2m1", _low_then_high), _emit_mx("e2m1")),
        Format("mxfp4_ocp", 32, 17, 32, _mx("e2m1", _in_pairs), _emit_mx("e2m1", 4)),
        Format("mxfp6_e2m3", 32, 25, 32, _mx("e2m3", _six_bits), _emit_mx("e2m3", 6)),
        Format("mxfp6_e3m2", 32, 25, 32, _mx("e3m2", _six_bits), _emit_mx("e3m2", 6)),
        Format("mxfp8_e4m3", 32, 33, 32, _mx("e4m3", lambda x: x), _emit_mx("e4m3", 8)),
        Format("mxfp8_e5m2", 32, 33, 32, _mx("e5m2", lambda x: x), _emit_mx("e5m2", 8)),
        Format("q4_0", 32, 18, 32, _q4_0, _emit_q4_0),
        Format("q4_1", 32, 20, 32, _q4_1, _emit_q4_1),
        Format("q5_0", 32, 22, 32, _q5_0, _emit_q5_0),
        Format("q5_1", 32, 24, 32, _q5_1, _emit_q5_1),
        Format("q8_0", 32, 34, 32, _q8_0, _emit_q8_0),
        Format("q4_k", 256, 144, 32, _q4_k, _emit_q4_k),
        Format("q5_k", 256, 176, 32, _q5_k, _emit_q5_k),
        Format("q6_k", 256, 210, 16, _q6_k, _emit_q6_k),
    )
}


def format_named(name: str) -> Format:
    """Look a format up by name."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise TileError(f"quantized format {name!r} is not known; known: {', '.join(FORMATS)}") from None
