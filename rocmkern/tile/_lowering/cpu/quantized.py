"""Blocks of quantized formats, decoded a vector at a time."""

from __future__ import annotations

from llvmlite import ir

from rocmkern.architectures import architecture
from rocmkern.tile import codes
from rocmkern.tile._lowering.cpu.emit import shuffle, splat, vec
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I8, I16, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import at, call
from rocmkern.tile.formats import RUN, Format


class Block:
    """A `formats.BlockReader`: `RUN` elements are one vector."""

    def __init__(self, b: ir.IRBuilder, start: ir.Value, arch: str):
        self.b, self.start, self.arch = b, start, arch

    def load(self, offset: ir.Value, ty: ir.Type) -> ir.Value:
        return self.b.load(at(self.b, self.start, self.b.zext(offset, I64), ty), align=1)

    def byte(self, offset: ir.Value) -> ir.Value:
        return self.b.zext(self.load(offset, I8), I32)

    def short(self, offset: ir.Value) -> ir.Value:
        return self.b.zext(self.load(offset, I16), I32)

    def word(self, offset: ir.Value) -> ir.Value:
        return self.load(offset, I32)

    def half(self, offset: ir.Value) -> ir.Value:
        return self.b.fpext(self.load(offset, F16), F32)

    def fields(self, offset: ir.Value, count: int, width: int, step: int = 1) -> list[ir.Value]:
        b, wide = self.b, vec(I32, count)
        packed = self.load(offset, vec(I8, count * width // 8))
        if width == 8:
            return [b.zext(packed, wide)]
        places = [divmod(i * width, 8) for i in range(count)]
        low = b.zext(shuffle(b, packed, packed, [byte for byte, _ in places]), wide)
        if 8 % width:
            following = [min(byte + 1, packed.type.count - 1) for byte, _ in places]
            low = b.or_(low, b.shl(b.zext(shuffle(b, packed, packed, following), wide), const(wide, 8)))
        shifted = b.lshr(low, ir.Constant(wide, [shift for _, shift in places]))
        return [b.and_(shifted, const(wide, (1 << width) - 1))]

    def nibbles(self, offset: ir.Value, count: int, shift: ir.Value, numbers: tuple, step: int = 1) -> None:
        """`fields` and `lookup` are as good."""

    def whole_bytes(self, kind: str, offset: ir.Value, count: int) -> None:
        """`fields` does it."""

    def power(self, offset: ir.Value) -> ir.Value:
        return codes.emit_e8m0(self.b, self.byte(offset))

    def joined_bits(
        self, low: ir.Value, low_shift: ir.Value, high: ir.Value, high_shift: ir.Value, width: int, less: int,
        count: int,
    ) -> None:  # fmt: skip
        """`fields` does it."""

    def five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, less: int, count: int
    ) -> list[ir.Value]:
        b, wide = self.b, vec(I32, count)
        (packed,) = self.fields(low, count, 8)
        nibbles = b.and_(b.lshr(packed, splat(b, shift, count)), const(wide, 15))
        bits = splat(b, b.lshr(self.word(plane), first), count)
        fifth = b.and_(b.lshr(bits, ir.Constant(wide, list(range(count)))), const(wide, 1))
        code = b.or_(nibbles, b.shl(fifth, const(wide, 4)))
        return [b.sitofp(b.sub(code, const(wide, less)), vec(F32, count))]

    def lookup(self, numbers: tuple, lanes: list[ir.Value]) -> list[ir.Value] | None:
        floats = vec(F32, 16)
        if not architecture(self.arch).permutes:
            return None
        # vpermps takes the low four bits of each index.
        table = ir.Constant(floats, list(numbers))
        return [call(self.b, "llvm.x86.avx512.permvar.sf.512", floats, [table, x]) for x in lanes]


def runs_of(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, width: int, arch: str) -> list:
    """Elements ``column .. column + width`` of a row of blocks, `RUN` at a time: (offset from column, `formats.Run`).

    ``column`` is a multiple of ``width``, which divides a block or is one. All are decoded before one can be stored:
    what they share is loaded once.
    """
    block = b.udiv(column, const(I64, kind.elements))
    start = b.gep(row, [b.mul(block, const(I64, kind.nbytes))])
    # Where a run starts in its block is a constant if that is known: then so are the positions of its bits.
    first = const(I32, 0)
    if width < kind.elements:
        first = b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))
    runs = []
    for offset in range(0, width, RUN):
        place = const(I32, offset) if width == kind.elements else b.add(first, const(I32, offset))
        runs.append((offset, kind.emit(b, Block(b, start, arch), place, RUN)))
    return runs


def decode(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, width: int, arch: str) -> list:
    """`runs_of` with the elements of each as one vector."""
    return [(offset, *run.elements(b)) for offset, run in runs_of(b, kind, row, column, width, arch)]
