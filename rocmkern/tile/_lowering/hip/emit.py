"""What is emitted everywhere: vectors, branches, loops, lanes, votes, exchanges, what keeps LLVM from moving code."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.shared.activations import Activations
from rocmkern.tile._lowering.shared.atoms import Atom
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I1, I8, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import call, joined

LOG2_E = 1.4426950408889634
NEG_INF = float("-inf")
#: Registers of one group of loads from shared memory in a product; two groups are alive at a time.
LOAD_AHEAD = 16
GLOBAL, LOCAL, CONSTANT = 1, 3, 4  # LLVM address spaces
#: Control word of a DPP instruction that takes a value from another lane of 16: by exclusive or with its low bits.
DPP_ROW_XMASK = 0x160
POINTER = ir.PointerType(I8)


def items_of(b: ir.IRBuilder, aggregate: ir.Value) -> list:
    return [b.extract_value(aggregate, i) for i in range(len(aggregate.type.elements))]


def aggregate_of(b: ir.IRBuilder, ty: ir.Type, items: list) -> ir.Value:
    value = ir.Constant(ty, ir.Undefined)
    for i, item in enumerate(items):
        value = b.insert_value(value, item, i)
    return value


def array_of(b: ir.IRBuilder, items: list) -> ir.Value:
    return aggregate_of(b, ir.ArrayType(items[0].type, len(items)), items)


def flags_of(b: ir.IRBuilder, rows: ir.Value) -> list:
    """Boolean rows as bits."""
    return [b.trunc(x, I1) for x in items_of(b, rows)]


def flag_rows(b: ir.IRBuilder, flags: list) -> ir.Value:
    return array_of(b, [b.zext(x, I8) for x in flags])


def elements_of(b: ir.IRBuilder, vector: ir.Value) -> list:
    return [b.extract_element(vector, const(I32, i)) for i in range(vector.type.count)]


def vector_of(b: ir.IRBuilder, items: list) -> ir.Value:
    value = ir.Constant(ir.VectorType(items[0].type, len(items)), ir.Undefined)
    for i, item in enumerate(items):
        value = b.insert_element(value, item, const(I32, i))
    return value


def splat(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    v = b.insert_element(ir.Constant(ir.VectorType(x.type, n), ir.Undefined), x, const(I32, 0))
    return b.shuffle_vector(v, v, const(ir.VectorType(I32, n), 0))


def shuffle(b: ir.IRBuilder, v: ir.Value, w: ir.Value, order: Any) -> ir.Value:
    order = list(order)
    return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, len(order)), order))


def _type_suffix(ty: ir.Type) -> str:
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{_type_suffix(ty.element)}"
    return f"i{ty.width}" if isinstance(ty, ir.IntType) else {F16: "f16", F32: "f32"}[ty]


def math(b: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    """Call ``llvm.<name>`` overloaded on the type of its arguments."""
    return call(b, f"llvm.{name}.{_type_suffix(args[0].type)}", args[0].type, list(args))


def each_element(b: ir.IRBuilder, vector: ir.Value, body: Callable) -> ir.Value:
    return vector_of(b, [body(x) for x in elements_of(b, vector)])


def exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return math(b, "amdgcn.exp2", x)


def _divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y to two units in the last place, y being neither very small nor very large."""
    return b.fmul(x, math(b, "amdgcn.rcp", y))


ACTIVATIONS = Activations(exp2=exp2, divide=_divide)


def tree(b: ir.IRBuilder, join: Callable, xs: list) -> ir.Value:
    """Join vectors pairwise, then their elements."""
    while len(xs) > 1:
        xs = [join(x, y) for x, y in itertools.zip_longest(xs[::2], xs[1::2]) if y is not None] + xs[len(xs) & ~1 :]
    elements = elements_of(b, xs[0])
    while len(elements) > 1:
        elements = [join(x, y) for x, y in zip(elements[::2], elements[1::2], strict=True)]
    return elements[0]


def largest_of(b: ir.IRBuilder, vectors: list) -> ir.Value:
    """The largest element, found three at a time: there is an instruction for that."""

    def larger(x: ir.Value, y: ir.Value) -> ir.Value:
        return math(b, "maxnum", x, y)

    xs = [x for v in vectors for x in elements_of(b, v)]
    while len(xs) > 1:
        xs = [functools.reduce(larger, xs[i : i + 3]) for i in range(0, len(xs), 3)]
    return xs[0]


def if_then(b: ir.IRBuilder, condition: ir.Value, values: list, body: Callable) -> list:
    """``body()``, which returns new values, if the condition holds; else ``values``.

    For tiles use this and not `if_else`. LLVM makes two conditional blocks of if and else, one after the other, even
    where all lanes take the same way: what the second one starts from stays alive during the first.
    """
    start = b.block
    with b.if_then(condition):
        new, end = body(), b.block
    return joined(b, new, end, values, start)


def loop(b: ir.IRBuilder, count: int, values: list, body: Callable) -> list:
    """``values = body(i, values)`` for i in 0 .. count - 1, as a loop that LLVM does not unroll."""
    bound, before, head = opaque(b, const(I32, count), "s"), b.block, b.append_basic_block("loop")
    b.branch(head)
    b.position_at_end(head)
    number, phis = b.phi(I32), [b.phi(x.type) for x in values]
    new = body(number, phis)
    following = b.add(number, const(I32, 1))
    for phi, first, then in zip([number, *phis], [const(I32, 0), *values], [following, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, b.block)
    done = b.append_basic_block("done")
    b.cbranch(b.icmp_unsigned("<", following, bound), head, done)
    b.position_at_end(done)
    return new


def shared_code(b: ir.IRBuilder, name: str, args: list, own: list, body: Callable) -> list:
    """``body(b, args, own)``, a list of values, as a call of an internal function that is inlined later.

    Where both branches of a kernel end in the same calls, LLVM makes one of the two, provided that at most one argument
    differs: ``own`` is passed as one. So both branches share the code, and a tile does not have to live in two places
    (see `if_then`).
    """
    state = ir.LiteralStructType([x.type for x in own])
    types_ = [*(x.type for x in args), state]

    def emit(function: ir.Function) -> tuple:
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        return inner, body(inner, list(function.args[:-1]), items_of(inner, function.args[-1]))

    name = f"rocmkern_{name}"
    function = b.module.globals.get(name)
    if function is None:
        # Only the body tells the types of the results: it is made once more, and thrown away.
        _, trial = emit(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), types_), name))
        results = ir.LiteralStructType([x.type for x in trial])
        function = ir.Function(b.module, ir.FunctionType(results, types_), name)
        function.linkage = "internal"
        # All lanes take part: it must not be copied into branches that only some of them take.
        function.attributes.add("noduplicate")
        inner, values = emit(function)
        inner.ret(aggregate_of(inner, results, values))
    return items_of(b, b.call(function, [*args, aggregate_of(b, state, own)]))


def flat(blocks: list) -> list:
    return list(itertools.chain(*blocks))


def in_blocks(values: list, size: int) -> list:
    return [values[i : i + size] for i in range(0, len(values), size)]


def thread_index(b: ir.IRBuilder) -> ir.Value:
    return call(b, "llvm.amdgcn.workitem.id.x", I32, [])


class Lane:
    """Where this lane stands in its wave, as i32 values."""

    def __init__(self, b: ir.IRBuilder, atom: Atom):
        self.atom = atom
        self.index = b.and_(thread_index(b), const(I32, atom.wave - 1))
        self.row = b.and_(self.index, const(I32, atom.rows - 1))
        self.group = b.lshr(self.index, const(I32, atom.rows.bit_length() - 1))


def wave_index(b: ir.IRBuilder, atom: Atom) -> ir.Value:
    return b.lshr(thread_index(b), const(I32, atom.wave.bit_length() - 1))


def from_group(b: ir.IRBuilder, atom: Atom, value: ir.Value, distance: int) -> ir.Value:
    """A 32-bit value of the lane with the same row in the group ``distance`` away (exclusive or)."""
    if distance == 0:
        return value
    bits = b.bitcast(value, I32)
    lanes = atom.rows * distance
    # All lanes are active, so that the value for lanes that are not (the first one) never counts.
    nothing = ir.Constant(I32, ir.Undefined)
    if atom.wave == 32 and lanes < 16:
        control = [const(I32, x) for x in (DPP_ROW_XMASK + lanes, 0xF, 0xF)]
        bits = call(b, "llvm.amdgcn.update.dpp.i32", I32, [nothing, bits, *control, const(I1, 1)])
    elif atom.wave == 32:
        # Lane n of a half wave takes what lane n (or 8 lanes on) of the other one has.
        selectors = [const(I32, 0x76543210), const(I32, 0xFEDCBA98 - (1 << 32))]
        selectors = selectors[::-1] if lanes & 8 else selectors
        bits = call(b, "llvm.amdgcn.permlanex16.i32", I32, [nothing, bits, *selectors, const(I1, 0), const(I1, 1)])
    else:
        lane = b.xor(Lane(b, atom).index, const(I32, lanes))
        bits = call(b, "llvm.amdgcn.ds.bpermute", I32, [b.shl(lane, const(I32, 2)), bits])
    return b.bitcast(bits, value.type)


def from_lane(b: ir.IRBuilder, atom: Atom, value: ir.Value, distance: int) -> ir.Value:
    """A 32-bit value of the lane ``distance`` away (exclusive or)."""
    lane = b.xor(Lane(b, atom).index, const(I32, distance))
    bits = call(b, "llvm.amdgcn.ds.bpermute", I32, [b.shl(lane, const(I32, 2)), b.bitcast(value, I32)])
    return b.bitcast(bits, value.type)


def over_groups(b: ir.IRBuilder, atom: Atom, join: Callable, value: ir.Value) -> ir.Value:
    distance = 1
    while distance < atom.groups:
        value = join(value, from_group(b, atom, value, distance))
        distance *= 2
    return value


def over_lanes(b: ir.IRBuilder, atom: Atom, join: Callable, value: ir.Value, first: int, end: int) -> ir.Value:
    """Join a value over the lanes at the distances ``first``, ``2 * first``, ... below ``end`` (exclusive or)."""
    while first < end:
        value = join(value, from_lane(b, atom, value, first))
        first *= 2
    return value


def any_lane(b: ir.IRBuilder, atom: Atom, condition: ir.Value) -> ir.Value:
    """Whether a condition holds in any lane of the wave (uniform)."""
    mask = ir.IntType(atom.wave)
    votes = call(b, f"llvm.amdgcn.ballot.i{atom.wave}", mask, [condition])
    return b.icmp_unsigned("!=", votes, const(mask, 0))


class _LocalFence(ir.instructions.Fence):
    """A workgroup fence; metadata restricts it to shared memory, so that global loads stay in flight."""

    def descr(self, buf: list) -> None:
        buf.append(f'fence syncscope("workgroup") {self.ordering}{self._stringify_metadata(leading_comma=True)}\n')


def local_barrier(b: ir.IRBuilder) -> list[ir.Instruction]:
    """All waves of the block meet here, and see what each of them has written to shared memory; its instructions."""

    def fence(ordering: str) -> ir.Instruction:
        instruction = _LocalFence(b.block, ordering)
        names = [ir.MetaDataString(b.module, s) for s in ("amdgpu-synchronize-as", "local")]
        instruction.set_metadata("mmra", b.module.add_metadata(names))
        b._insert(instruction)
        return instruction

    return [fence("release"), call(b, "llvm.amdgcn.s.barrier", ir.VoidType(), []), fence("acquire")]


def keep_order(b: ir.IRBuilder) -> None:
    """Keep loads above this point: LLVM would sink a prefetch to its use."""
    b.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True), [])


def uniform(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """An i64, i32 or float32 that is the same in all lanes, in scalar registers: LLVM may have put it elsewhere."""
    if value.type in (I32, F32):
        return b.bitcast(math(b, "amdgcn.readfirstlane", b.bitcast(value, I32)), value.type)
    parts = each_element(b, b.bitcast(value, ir.VectorType(I32, 2)), lambda x: math(b, "amdgcn.readfirstlane", x))
    return b.bitcast(parts, I64)


def opaque(b: ir.IRBuilder, value: ir.Value, register: str) -> ir.Value:
    """The same value, of unknown origin: what is computed from it stays where it is, instead of moving out of a loop.

    ``register`` is "s" for a value in scalar registers, else "v". LLVM has launch words, loop counters and what is
    computed from them in scalar registers; `uniform` brings other values there that are the same in all lanes.
    """
    ty = ir.FunctionType(value.type, [value.type])
    return b.call(ir.InlineAsm(ty, "", f"={register},0", side_effect=True), [value])


def launch_words(b: ir.IRBuilder) -> ir.Value:
    """Where the words of the launch lie."""
    return call(b, "llvm.amdgcn.kernarg.segment.ptr", ir.PointerType(I8, CONSTANT), [])


def word_at(b: ir.IRBuilder, words: ir.Value, number: ir.Value) -> ir.Value:
    """A word of the launch, from where they lie."""
    place = b.gep(words, [b.mul(number, const(I64, 8))], source_etype=I8)
    word = b.load(b.bitcast(place, ir.PointerType(I64, CONSTANT)), align=8)
    word.set_metadata("invariant.load", b.module.add_metadata([]))
    return word


def pinned(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The same vector. What it is computed from stays here: LLVM would move it behind branches, away from its loads."""
    return each_element(b, vector, lambda x: opaque(b, x, "v"))


def pipelined(b: ir.IRBuilder, steps: list, load: Callable, use: Callable, registers: int) -> None:
    """``use(step, load(step))`` for each step, with the loads one group of steps ahead and no further.

    Left alone, LLVM loads everything first, more than there are registers. A load takes ``registers`` of them.
    """
    size = max(1, LOAD_AHEAD // registers)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    ahead = [load(step) for step in groups[0]]
    for i, group in enumerate(groups):
        loaded, ahead = ahead, [load(step) for step in groups[i + 1]] if i + 1 < len(groups) else []
        for step, value in zip(group, loaded, strict=True):
            use(step, value)
        schedule_no_further(b)


def schedule_no_further(b: ir.IRBuilder) -> None:
    """No instruction is moved across this point."""
    call(b, "llvm.amdgcn.sched.barrier", ir.VoidType(), [const(I32, 0)])
