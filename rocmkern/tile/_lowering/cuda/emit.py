"""What is emitted everywhere: inline PTX, branches, outlined functions, lanes, votes, arithmetic, exchanges."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from llvmlite import ir

from rocmkern.tile._lowering.shared.activations import Activations
from rocmkern.tile._lowering.shared.ir_types import F32, I32, const
from rocmkern.tile._lowering.shared.tensors import call, fma

LANES = 32
VOID = ir.VoidType()


def unpack(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    return [b.extract_value(value, i) for i in range(value.type.count)]


def pack(b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    array = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
    for i, v in enumerate(values):
        array = b.insert_value(array, v, i)
    return array


def stack(b: ir.IRBuilder, ty: ir.Type) -> ir.Value:
    """Room in the thread's stack; numba's own helper would fill it with zeros, in every thread."""
    with b.goto_entry_block():
        return b.alloca(ty)


def asm(
    b: ir.IRBuilder, code: str, result: ir.Type, constraints: str, args: list[ir.Value], effect: bool = False
) -> ir.Value:
    """Inline PTX. Without ``effect`` it depends on its arguments only."""
    fnty = ir.FunctionType(result, [a.type for a in args])
    return b.call(
        ir.InlineAsm(fnty, code, constraints, side_effect=effect),
        args,
        attrs=() if effect else ("readnone", "nounwind"),
    )


def asm_many(
    b: ir.IRBuilder, code: str, results: list[ir.Type], constraints: str, args: list[ir.Value], effect: bool = False
) -> list[ir.Value]:
    """Inline PTX with several results."""
    value = asm(b, code, ir.LiteralStructType(results), constraints, args, effect)
    return [b.extract_value(value, i) for i in range(len(results))]


def split_at(values: list, lengths: list[int]) -> list[list]:
    """Consecutive parts of a list."""
    ends = list(itertools.accumulate(lengths))
    return [values[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def call_outlined(b: ir.IRBuilder, name: str, args: list[ir.Value], emit: Callable[..., None]) -> None:
    """Run ``emit(builder, *args)`` in a function of its own.

    What is rare goes there, so that it costs the common path no registers. A name stands for one body in a module.
    """
    fn = b.module.globals.get(name)
    if fn is None:
        fn = ir.Function(b.module, ir.FunctionType(VOID, [a.type for a in args]), name)
        fn.linkage = "internal"
        fn.attributes.add("noinline")
        body = ir.IRBuilder(fn.append_basic_block("entry"))
        emit(body, *fn.args)
        body.ret_void()
    b.call(fn, args)


def outlined(
    b: ir.IRBuilder, name: str, args: list[ir.Value], arrays: list[list[ir.Value]], result: ir.ArrayType, emit: Callable
) -> list[ir.Value]:
    """The list that ``emit(builder, *args, *arrays)`` returns, of a given type; see `call_outlined`.

    Arrays travel through memory.
    """
    types = [ir.ArrayType(values[0].type, len(values)) for values in arrays]
    places = [stack(b, t) for t in (*types, result)]
    for values, place in zip(arrays, places, strict=False):
        b.store(pack(b, values), place)

    def body(inner: ir.IRBuilder, *outer: ir.Value) -> None:
        scalars, pointers, into = outer[: len(args)], outer[len(args) : -1], outer[-1]
        results = emit(inner, *scalars, *(unpack(inner, inner.load(pointer)) for pointer in pointers))
        inner.store(pack(inner, results), into)

    call_outlined(b, name, [*args, *places], body)
    return unpack(b, b.load(places[-1]))


def register(b: ir.IRBuilder, name: str) -> ir.Value:
    """A special register (32 bits)."""
    return call(b, f"llvm.nvvm.read.ptx.sreg.{name}", I32, [])


def thread(b: ir.IRBuilder) -> ir.Value:
    return register(b, "tid.x")


def lane_index(b: ir.IRBuilder) -> ir.Value:
    return b.and_(thread(b), const(I32, LANES - 1))


def select_bytes(b: ir.IRBuilder, low: ir.Value, high: ir.Value, selector: int) -> ir.Value:
    """Four of the eight bytes of two words, a hexadecimal digit for each."""
    return asm(b, f"prmt.b32 $0, $1, $2, {selector:#x};", I32, "=r,r,r", [low, high])


def funnel(b: ir.IRBuilder, low: ir.Value, high: ir.Value, shift: ir.Value) -> ir.Value:
    """The lower word of two that are shifted right."""
    return asm(b, "shf.r.wrap.b32 $0, $1, $2, $3;", I32, "=r,r,r,r", [low, high, shift])


def fma_where(b: ir.IRBuilder, condition: ir.Value, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """``x * y + z`` where the condition holds, else z, in one instruction."""
    code = "{.reg .pred p; setp.ne.b32 p, $3, 0; @p fma.rn.f32 $0, $1, $2, $0;}"
    return asm(b, code, F32, "=f,f,f,r,0", [x, y, b.zext(condition, I32), z])


def barrier(b: ir.IRBuilder) -> None:
    call(b, "llvm.nvvm.barrier0", VOID, [])


def meet_in_warp(b: ir.IRBuilder) -> None:
    """A barrier of the lanes of a warp."""
    asm(b, "bar.warp.sync 0xffffffff;", VOID, "~{memory}", [], effect=True)


def any_in_block(b: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    """Whether the condition holds in any thread; a barrier."""
    return b.icmp_signed("!=", call(b, "llvm.nvvm.barrier0.or", I32, [b.zext(condition, I32)]), const(I32, 0))


def any_in_warp(b: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    code = "{.reg .pred p, q; setp.ne.u32 p, $1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 $0, 1, 0, q;}"
    return b.icmp_signed("!=", asm(b, code, I32, "=r,r", [b.zext(condition, I32)], effect=True), const(I32, 0))


def dot(b: ir.IRBuilder, xs: list[ir.Value], ys: list[ir.Value]) -> ir.Value:
    """Sum of products, in two chains."""
    sums: list[ir.Value] = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if i < 2:
            sums.append(b.fmul(x, y))
        else:
            sums[i % 2] = fma(b, x, y, sums[i % 2])
    return tree(b, sums, b.fadd)


def fmax(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger; a NaN is ignored."""
    return asm(b, "max.f32 $0, $1, $2;", F32, "=f,f,f", [x, y])


def fmin(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The smaller; a NaN is ignored."""
    return asm(b, "min.f32 $0, $1, $2;", F32, "=f,f,f", [x, y])


def exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Relative error 2 ** -22; 0 below 2 ** -126."""
    return asm(b, "ex2.approx.ftz.f32 $0, $1;", F32, "=f,f", [x])


def sqrt(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return asm(b, "sqrt.rn.f32 $0, $1;", F32, "=f,f", [x])


def fabs(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return asm(b, "abs.f32 $0, $1;", F32, "=f,f", [x])


def divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y to two units in the last place, y being neither very small nor very large."""
    return asm(b, "div.full.f32 $0, $1, $2;", F32, "=f,f,f", [x, y])


ACTIVATIONS = Activations(exp2=exp2, divide=divide)


def floor_divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Python's // and % of integers."""
    zero = const(x.type, 0)
    quotient, rest = b.sdiv(x, y), b.srem(x, y)
    adjust = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
    return b.select(adjust, b.sub(quotient, const(x.type, 1)), quotient), b.select(adjust, b.add(rest, y), rest)


def tree(b: ir.IRBuilder, values: list[ir.Value], combine: Callable) -> ir.Value:
    """Combine values pairwise."""
    while len(values) > 1:
        values = [combine(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def shuffle(b: ir.IRBuilder, x: ir.Value, lane: ir.Value) -> ir.Value:
    """``x`` of another lane."""
    return asm(b, "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", F32, "=f,f,r", [x, lane], effect=True)


def over_lanes(b: ir.IRBuilder, x: ir.Value, combine: Callable, lanes: int = 4, first: int = 1) -> ir.Value:
    """Combine over the lanes that share rows: ``lanes`` of a warp side by side, or every ``first`` of them."""
    for distance in (1, 2, 4, 8, 16):
        if not first <= distance < lanes:
            continue
        code = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
        x = combine(x, asm(b, code, F32, "=f,f", [x], effect=True))
    return x


def over_warps_by_lane(b: ir.IRBuilder, values: list[ir.Value], warps: int) -> list[ir.Value]:
    """Sums of what the same lane of each of the block's warps has."""
    if warps == 1:
        return values
    ty = ir.ArrayType(ir.ArrayType(F32, LANES), warps * len(values))
    room = b.module.globals.get(f"by_lane_{len(values)}")
    if room is None:
        room = ir.GlobalVariable(b.module, ty, f"by_lane_{len(values)}", addrspace=3)
        room.linkage, room.initializer = "internal", ir.Constant(ty, ir.Undefined)
    lane, first = lane_index(b), b.mul(b.lshr(thread(b), const(I32, 5)), const(I32, len(values)))
    for i, value in enumerate(values):
        b.store(value, b.gep(room, [const(I32, 0), b.add(first, const(I32, i)), lane]))
    barrier(b)
    sums = []
    for i in range(len(values)):
        places = [const(I32, warp * len(values) + i) for warp in range(warps)]
        sums.append(tree(b, [b.load(b.gep(room, [const(I32, 0), place, lane])) for place in places], b.fadd))
    barrier(b)  # before the next values are written there
    return sums


def transpose_quad(b: ir.IRBuilder, words: list[ir.Value]) -> list[ir.Value]:
    """Exchange four words of each of the four lanes of a quad: lane t gets word t of lane 0, 1, 2, 3."""
    words, lane = list(words), thread(b)
    for distance in (2, 1):
        upper = b.icmp_signed("!=", b.and_(lane, const(I32, distance)), const(I32, 0))
        code = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
        for i in (0, 1) if distance == 2 else (0, 2):
            low, high = words[i], words[i + distance]
            other = asm(b, code, I32, "=r,r", [b.select(upper, low, high)], effect=True)
            words[i], words[i + distance] = b.select(upper, other, low), b.select(upper, high, other)
    return words


PTX_TYPE = {"float16": "f16", "bfloat16": "bf16"}


def _pair(b: ir.IRBuilder, low: ir.Value, high: ir.Value, dtype: str) -> ir.Value:
    """Two float32, rounded to 16 bits, in one register."""
    return asm(b, f"cvt.rn.{PTX_TYPE[dtype]}x2.f32 $0, $1, $2;", I32, "=r,f,f", [high, low])


def to_fragments(b: ir.IRBuilder, values: list[ir.Value], dtype: str) -> list[ir.Value]:
    """A tile's values as A fragments: each 16 columns are two groups of 8, each with two rows of a pair."""
    return [_pair(b, values[i], values[i + 1], dtype) for i in range(0, len(values), 2)]
