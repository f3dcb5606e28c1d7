"""Matrix instructions: mma.sync, and wgmma on Hopper."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import PTX_TYPE, asm, asm_many, thread
from rocmkern.tile._lowering.cuda.windows import SLAB_ROW
from rocmkern.tile._lowering.shared.ir_types import F32, I32, const


def mma(b: ir.IRBuilder, left: list, right: list, acc: list, dtype: str) -> list[ir.Value]:
    t = PTX_TYPE[dtype]
    code = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{t}.{t}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    return asm_many(b, code, [F32] * 4, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", [*left, *right, *acc])


def wgmma(
    b: ir.IRBuilder,
    ty: Any,
    window: ir.Value,
    left: list[list[ir.Value]] | tuple[Any, ir.Value],
    steps: range,
    acc: list[ir.Value] | None,
    by_rows: bool,
    wait: bool = True,
) -> list[ir.Value]:
    """acc + left @ window.T (``by_rows``) or left @ window, for the 64 rows of four warps.

    ``left`` has one A fragment for each step of 16 along the reduced axis, or it is the type and the window of a stage
    whose rows 64 g .. 64 g + 64 are those of the g-th four warps. A lane holds of the result what it holds of
    mma.sync's. The window is told by a descriptor (PTX ISA, "matrix descriptor"): address, distance of its slabs,
    distance of 8 rows, and the swizzle of 128 bytes. Without ``wait`` the product is only started, as a group.
    """
    columns, slab = (ty.n if by_rows else ty.k), ty.n * SLAB_ROW
    count, t = columns // 2, PTX_TYPE[ty.dtype]
    # Descriptors differ in their lower halves only, where the address is: 32-bit sums are enough for them.
    upper = 1 << 30 | 8 * SLAB_ROW >> 4
    descriptor = b.or_(b.lshr(window, const(I32, 4)), const(I32, (slab >> 4) << 16))
    stage = left[0] if isinstance(left, tuple) else None
    if stage is None:
        registers = [x for fragment in left for x in fragment]
    else:
        # The same in all lanes, which the compiler cannot know.
        group = b.lshr(thread(b), const(I32, 7))
        group = asm(b, "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", I32, "=r,r", [group])
        across = getattr(stage, "swapped", False)  # 64 rows are the columns of one slab then
        rows = b.add(left[1], b.mul(group, const(I32, (stage.k if across else 64) * SLAB_ROW)))
        registers = [b.lshr(rows, const(I32, 4))]
    first = count if acc is None else 2 * count  # of the operands after the accumulators
    results = ", ".join(f"${i}" for i in range(count))
    lines = ["{.reg .pred p; .reg .b32 e; .reg .b64 c, d; setp.ne.b32 p, 0, 0;", "wgmma.fence.sync.aligned;"]

    def describe(name: str, operand: int, offset: int) -> None:
        lines.append(f"add.u32 e, ${operand}, {offset >> 4}; mov.b64 {name}, {{e, {upper}}};")

    for i, step in enumerate(steps):
        chunks = 2 * step
        offset = chunks // 8 * slab + chunks % 8 * 16 if by_rows else 16 * step * SLAB_ROW
        fragment = f"{{{', '.join(f'${first + 4 * i + e}' for e in range(4))}}}"
        if stage is not None:
            along = chunks // 8 * stage.n * SLAB_ROW + chunks % 8 * 16
            describe("c", first, 16 * step * SLAB_ROW if across else along)
            fragment = "c"
        if i == 1:
            lines.append("setp.eq.b32 p, 0, 0;")
        describe("d", first + len(registers), offset)
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{t}.{t} {{{results}}}, {fragment}, d, "
            f"p, 1, 1, {'' if stage is None else f'{int(across)}, '}{0 if by_rows else 1};"
        )
    if acc is not None:
        lines[0] = lines[0].replace("setp.ne", "setp.eq")
    lines += ["wgmma.commit_group.sync.aligned;", *(["wgmma.wait_group.sync.aligned 0;"] if wait else []), "}"]
    tied = [] if acc is None else [str(i) for i in range(count)]
    constraints = ["=f"] * count + tied + ["r"] * (len(registers) + 1) + ["~{memory}"]
    args = [*(acc or []), *registers, descriptor]
    return asm_many(b, "\n".join(lines), [F32] * count, ",".join(constraints), args, effect=True)


class Halves:
    """Bit tricks on a register of two 16-bit floats. Masks and results are for both halves at once."""

    def __init__(self, b: ir.IRBuilder, dtype: str):
        self.b = b
        mantissa_bits = {"float16": 10, "bfloat16": 7}[dtype]
        self.mantissa = (1 << mantissa_bits) - 1
        self.exponent = 0x7FFF & ~self.mantissa
        self.one = {"float16": 0x3C00, "bfloat16": 0x3F80}[dtype]

    @staticmethod
    def both(bits: int) -> ir.Constant:
        return const(I32, bits << 16 | bits)

    def _carry(self, x: ir.Value, field: int, addend: int, bit: int) -> ir.Value:
        """1 in each half whose ``field`` plus ``addend`` carries into ``bit``; the sum stays within the half."""
        b = self.b
        total = b.add(b.and_(x, self.both(field)), self.both(addend))
        return b.and_(b.lshr(total, const(I32, bit)), self.both(1))

    def spread(self, flags: ir.Value, bits: int) -> ir.Value:
        """``bits`` in each half that has a flag."""
        return self.b.mul(flags, const(I32, bits))

    def not_finite(self, x: ir.Value) -> ir.Value:
        """1 where the exponent is all ones."""
        return self._carry(x, self.exponent, self.mantissa + 1, 15)

    def not_zero(self, x: ir.Value) -> ir.Value:
        return self._carry(x, 0x7FFF, 0x7FFF, 15)

    def has_mantissa(self, x: ir.Value) -> ir.Value:
        return self._carry(x, self.mantissa, self.mantissa, self.mantissa.bit_length())

    def sign(self, x: ir.Value) -> ir.Value:
        return self.b.and_(x, self.both(0x8000))

    def finite_or_zero(self, x: ir.Value) -> ir.Value:
        return self.b.and_(x, self.b.not_(self.spread(self.not_finite(x), 0xFFFF)))

    def direction(self, x: ir.Value) -> ir.Value:
        """1, -1 or 0: the sign of each number."""
        return self.b.or_(self.spread(self.not_zero(x), self.one), self.sign(x))

    def size_direction(self, x: ir.Value) -> ir.Value:
        """1 where the number is not 0."""
        return self.spread(self.not_zero(x), self.one)

    def infinity_direction(self, x: ir.Value) -> ir.Value:
        """1 or -1 where the number is infinite, else 0."""
        b = self.b
        bad = self.not_finite(x)
        infinite = b.and_(bad, b.not_(self.has_mantissa(x)))
        return b.or_(self.spread(infinite, self.one), b.and_(self.sign(x), self.spread(infinite, 0x8000)))

    def not_finite_one(self, x: ir.Value) -> ir.Value:
        return self.spread(self.not_finite(x), self.one)
