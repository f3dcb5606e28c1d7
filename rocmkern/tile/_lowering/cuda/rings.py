"""Rings of windows that Hopper's copy engine fills, and the products that read them while the block goes on.

With ``cfg.num_stages`` > 1 a stage of a 16-bit tensor is a ring of ``num_stages + 2`` windows in shared memory: those
on their
way, the one in use, and the one before it, which a product may still read. One thread starts the copy of a window, by a
tensor map: what the launcher says of a tensor (address, extents, strides), as a kernel parameter. The copy engine
writes the window as wgmma reads it, fills what lies past the end with zeros, and tells an mbarrier when the bytes are
there.

A product of two rings is only started. Its result is a `PendingTile`; `release` waits for the products before those of
the step, so that while the block turns to the next step the matrix units have work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.errors import TypingError
from numba.cuda.datamodel import models
from numba.cuda.extending import register_model

from rocmkern import tile as T
from rocmkern.tile import entry
from rocmkern.tile._lowering.cuda.backend import NUMBA, TILE
from rocmkern.tile._lowering.cuda.emit import VOID, asm, asm_many, barrier, pack, thread, unpack
from rocmkern.tile._lowering.cuda.layouts import ArrayModel, OwnStage, is_shared
from rocmkern.tile._lowering.cuda.windows import SLAB_ROW, is_for_groups, states, window_bytes
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, I64, const
from rocmkern.tile.language.kinds import DTYPES

#: Kernel parameters that are tensor maps are called this, and number of the tensor's first word, axes, rows of a box,
#: element type: ``rocmkern_map_9_4_128_float16``.
MAP_SYMBOL = "rocmkern_map_"
#: The copy engine brings in at most so many rows at a time.
BOX_ROWS = 256


class MappedTensor(TILE.Tensor):
    """A tensor for which there is a tensor map: an argument of the kernel, or a part of it by leading indices.

    ``number`` is that of the argument's first launch word, ``indexed`` says how many indices were taken, ``swapped``
    whether the last two axes are those of the argument the other way round.
    """

    def __init__(self, dtype: str, ndim: int, number: int, indexed: int = 0, swapped: bool = False):
        super().__init__(dtype, ndim)
        self.number, self.indexed, self.swapped = number, indexed, swapped
        self.name = f"cuda.MappedTensor({dtype},{ndim},{number},{indexed},{swapped})"


@register_model(MappedTensor)
class _MappedTensorModel(models.StructModel):
    """As a tensor, and the indices that were taken."""

    def __init__(self, manager: Any, ty: Any):
        axes = types.UniTuple(types.int64, ty.ndim)
        members = [("data", types.voidptr), ("shape", axes), ("strides", axes)]
        super().__init__(manager, ty, members + [(f"outer{i}", types.int32) for i in range(ty.indexed)])


class RingStage(TILE.Stage):
    """[n, k] windows in shared memory, ``num_stages`` of them on their way; ``swapped``: they lie there as [k, n]."""

    def __init__(self, st: Any, source: MappedTensor, num_stages: int):
        super().__init__(st.n, st.k, st.dtype, st.hw, st.source, False)
        self.number, self.indexed, self.swapped, self.num_stages = (
            source.number,
            source.indexed,
            source.swapped,
            num_stages,
        )
        self.name = f"cuda.RingStage({st.n},{st.k},{st.dtype},{st.hw},{source.name},{num_stages})"

    @property
    def stored(self) -> tuple[int, int]:
        """Rows and columns as they lie in memory."""
        return (self.k, self.n) if self.swapped else (self.n, self.k)

    @property
    def windows(self) -> int:
        """Windows of the ring."""
        return self.num_stages + 2

    @property
    def nbytes(self) -> int:
        """Shared memory: the windows, then an mbarrier for each."""
        return self.windows * (window_bytes(self) + 8)

    @property
    def box_rows(self) -> int:
        """Rows that are copied at a time."""
        return min(self.stored[0], BOX_ROWS)

    @property
    def symbol(self) -> str:
        """The tensor map's name."""
        return f"{MAP_SYMBOL}{self.number}_{2 + self.indexed}_{self.box_rows}_{self.dtype}"


@register_model(RingStage)
class _RingStageModel(models.StructModel):
    """Addresses of the window in use and of the ring, windows fetched and acquired so far, indices of the tensor."""

    def __init__(self, manager: Any, ty: Any):
        names = ["window", "memory", "fetched", "acquired", *(f"outer{i}" for i in range(ty.indexed))]
        super().__init__(manager, ty, [(name, types.int32) for name in names])


class PendingTile(TILE.Tile):
    """A tile that products may still be adding to."""

    def __init__(self, m: int, n: int, hw: tuple):
        super().__init__(m, n, hw)
        self.name = f"cuda.PendingTile({m},{n},{hw})"

    def unify(self, typingctx: Any, other: Any) -> Any:
        """A variable that also holds complete tiles holds pending ones."""
        return (
            self if isinstance(other, TILE.Tile) and (other.m, other.n, other.hw) == (self.m, self.n, self.hw) else None
        )


register_model(PendingTile)(ArrayModel)


def complete_type(ty: Any) -> Any:
    """The type of a tile when its products are done."""
    return TILE.Tile(ty.m, ty.n, ty.hw) if isinstance(ty, PendingTile) else ty


# ------------------------------------------------------------------------------------------------------- typing rules


def of_complete(rule: Callable) -> Callable:
    """A rule that sees complete tiles."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        return rule(*map(complete_type, args))

    return typed


def rule_of_mapped(x: Any, number: Any) -> Any:
    """The typing rule of `entry.mapped`."""
    return MappedTensor(x.dtype, x.ndim, number.literal_value)


def rule_of_getitem(rule: Callable) -> Callable:
    """The typing rule of ``x[i]``: parts of a mapped tensor are mapped."""

    @functools.wraps(rule)
    def typed(x: Any, index: Any) -> Any:
        part = rule(x, index)
        if isinstance(x, MappedTensor) and isinstance(part, TILE.Tensor):
            return MappedTensor(x.dtype, part.ndim, x.number, x.indexed + x.ndim - part.ndim)
        return part

    return typed


def rule_of_rows(rule: Callable) -> Callable:
    """The typing rule of `rows`: a range of rows has no tensor map."""

    @functools.wraps(rule)
    def typed(x: Any, start: Any, stop: Any) -> Any:
        part = rule(x, start, stop)
        return TILE.Tensor(part.dtype, part.ndim) if isinstance(part, MappedTensor) else part

    return typed


def rule_of_transposed(rule: Callable) -> Callable:
    """The typing rule of `transposed`: the map remains that of the argument."""

    @functools.wraps(rule)
    def typed(x: Any, swap: Any) -> Any:
        whole = rule(x, swap)
        if isinstance(whole, MappedTensor) and swap.literal_value:
            return MappedTensor(x.dtype, x.ndim, x.number, x.indexed, not x.swapped)
        return whole

    return typed


def rule_of_stage(rule: Callable) -> Callable:
    """The typing rule of `stage`: a ring where several windows may be on their way, or windows of each warp's own."""

    @functools.wraps(rule)
    def typed(cfg: Any, source: Any, *args: Any) -> Any:
        st = rule(cfg, source, *args)
        num_stages = cfg.cfg.num_stages
        if is_shared(st) and not st.format:
            return OwnStage(st, num_stages)
        if num_stages == 1:
            return st
        if isinstance(source, MappedTensor) and st.dtype == source.dtype and is_for_groups(st):
            ring = RingStage(st, source, num_stages)
            rows, columns = ring.stored
            if rows % ring.box_rows == 0 and columns * DTYPES[ring.dtype] % SLAB_ROW == 0:
                return ring
        raise TypingError(
            f"stage: num_stages={num_stages} is for tensors of 16 bits as they are given, in windows of whole 128-byte "
            f"rows, on architectures with wgmma and in blocks of whole groups of four waves; got {st} of {source}"
        )

    return typed


def rule_of_product(rule: Callable) -> Callable:
    """The typing rule of a product: that of two rings is only started."""

    @functools.wraps(rule)
    def typed(a: Any, b: Any, *args: Any) -> Any:
        tile = rule(a, b, *map(complete_type, args))
        started = isinstance(a, RingStage) and isinstance(b, RingStage) and tile.m == 16 * tile.hw[1]
        if getattr(b, "swapped", False) or (getattr(a, "swapped", False) and not started):
            raise TypingError(f"{rule.__name__}: only the left side may be transposed, 16 rows a wave, got {a} and {b}")
        return PendingTile(tile.m, tile.n, tile.hw) if started else tile

    return typed


def install_rules(rules: dict[Callable, Callable], getitem: Callable) -> None:
    """Change the typing rules where rings and mapped tensors take part."""
    rules[entry.mapped] = rule_of_mapped
    rules[getitem] = rule_of_getitem(rules[getitem])
    rules[T.rows] = rule_of_rows(rules[T.rows])
    rules[T.transposed] = rule_of_transposed(rules[T.transposed])
    rules[T.stage] = rule_of_stage(rules[T.stage])
    for op in PRODUCTS:
        rules[op] = rule_of_product(rules[op])


# ---------------------------------------------------------------------------------------------------- pending products

#: Operations that take a pending tile as it is.
PRODUCTS = (T.dot, T.dot_nt, T.dot_nn)


def complete(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A pending tile when its products are done: whoever uses the result comes after the wait."""
    values = unpack(b, value)
    count = len(values)
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["~{memory}"])
    return pack(b, asm_many(b, "wgmma.wait_group.sync.aligned 0;", [F32] * count, constraints, values, effect=True))


@NUMBA.lowering_registry.lower_cast(TILE.Tile, PendingTile)
def _cast_to_pending(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return value


class CompletingLowering:
    """A lowering to whose operations, products excepted, tiles come complete."""

    def __init__(self, lowering: Any):
        self._lowering = lowering

    def __getattr__(self, name: str) -> Callable:
        method = getattr(self._lowering, name)
        if name in [op.__name__ for op in PRODUCTS]:
            return method

        @functools.wraps(method)
        def lowered(context: Any, b: ir.IRBuilder, sig: Any, *values: Any) -> Any:
            args = getattr(sig, "args", ())
            if any(isinstance(ty, PendingTile) for ty in args):
                first = len(values) - len(args)  # what the signature does not have, an expression, comes before
                pairs = zip(args, values[first:], strict=True)
                completed = (complete(b, v) if isinstance(ty, PendingTile) else v for ty, v in pairs)
                values = (*values[:first], *completed)
                sig = NUMBA.signature(sig.return_type, *map(complete_type, args))
            return method(context, b, sig, *values)

        return lowered


# --------------------------------------------------------------------------------------------------------------- rings


def _barrier_of(b: ir.IRBuilder, ty: RingStage, st: Any, slot: ir.Value) -> ir.Value:
    """Address of the mbarrier of a window."""
    return b.add(b.add(st.memory, const(I32, ty.windows * window_bytes(ty))), b.shl(slot, const(I32, 3)))


def _slot(b: ir.IRBuilder, ty: RingStage, number: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Place in the ring of the window of a number, and the parity of its turn."""
    windows = const(I32, ty.windows)
    return b.urem(number, windows), b.and_(b.udiv(number, windows), const(I32, 1))


def new_ring(context: Any, b: ir.IRBuilder, ty: RingStage, source_ty: MappedTensor, source: Any, memory: Any) -> Any:
    """A ring in ``memory``, nothing fetched."""
    st = cgutils.create_struct_proxy(ty)(context, b)
    st.memory = st.window = memory
    st.fetched = st.acquired = const(I32, 0)
    tensor = cgutils.create_struct_proxy(source_ty)(context, b, source)
    for i in range(ty.indexed):
        setattr(st, f"outer{i}", getattr(tensor, f"outer{i}"))
    lines = [f"@p mbarrier.init.shared::cta.b64 [$0+{8 * i}], 1;" for i in range(ty.windows)]
    code = "{{.reg .pred p; setp.eq.u32 p, $1, 0; {} @p fence.mbarrier_init.release.cluster;}}".format(" ".join(lines))
    asm(b, code, VOID, "r,r,~{memory}", [_barrier_of(b, ty, st, const(I32, 0)), thread(b)], effect=True)
    return st._getvalue()


def fetch_ring(b: ir.IRBuilder, ty: RingStage, st: Any, row0: ir.Value, col0: ir.Value) -> None:
    """Start the copy of a window; one thread does. There is no jump in it."""
    slot, _ = _slot(b, ty, st.fetched)
    into = b.add(st.memory, b.mul(slot, const(I32, window_bytes(ty))))
    outer = [getattr(st, f"outer{i}") for i in reversed(range(ty.indexed))]
    if ty.swapped:
        row0, col0 = col0, row0
    args = [into, _barrier_of(b, ty, st, slot), thread(b), b.trunc(col0, I32), b.trunc(row0, I32), *outer]
    lines = [
        "{.reg .pred p; .reg .b64 m; .reg .b32 d, c, r; setp.eq.u32 p, $2, 0;",
        f"mov.b64 m, {ty.symbol}; cvta.param.u64 m, m;",
        f"@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {window_bytes(ty)};",
    ]
    columns = SLAB_ROW // DTYPES[ty.dtype]
    rows, width = ty.stored
    others = "".join(f", ${5 + i}" for i in range(ty.indexed))
    for slab in range(width // columns):
        for first in range(0, rows, ty.box_rows):
            lines.append(
                f"add.s32 d, $0, {(slab * rows + first) * SLAB_ROW}; add.s32 c, $3, {slab * columns}; "
                f"add.s32 r, $4, {first}; @p cp.async.bulk.tensor.{2 + ty.indexed}d.shared::cluster.global"
                f".mbarrier::complete_tx::bytes [d], [m, {{c, r{others}}}], [$1];"
            )
    asm(b, "\n".join([*lines, "}"]), VOID, ",".join(["r"] * len(args)) + ",~{memory}", args, effect=True)
    st.fetched = b.add(st.fetched, const(I32, 1))


def _wait(b: ir.IRBuilder, ty: RingStage, st: Any, number: ir.Value, condition: ir.Value) -> ir.Value:
    """Wait for the window of a number, if the condition holds; its place in the ring."""
    slot, parity = _slot(b, ty, number)
    code = (
        "{.reg .pred p, q; setp.eq.u32 q, $2, 0; @q bra DONE; WAIT: "
        "mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra DONE; bra WAIT; DONE: }"
    )
    args = [_barrier_of(b, ty, st, slot), parity, b.zext(condition, I32)]
    asm(b, code, VOID, "r,r,r,~{memory}", args, effect=True)
    return slot


def acquire_ring(b: ir.IRBuilder, ty: RingStage, st: Any) -> None:
    """The next window: every thread waits for its bytes.

    The barrier is for the next fetch, which overwrites a window that all warps must have done with. One serves all
    acquires that follow each other.
    """
    state = states.get(b.function)
    if state is None or state.met is not b.block:
        barrier(b)
    if state is not None:
        state.met, state.started = b.block, None
    slot = _wait(b, ty, st, st.acquired, const(I1, 1))
    st.window = b.add(st.memory, b.mul(slot, const(I32, window_bytes(ty))))
    st.acquired = b.add(st.acquired, const(I32, 1))


def note_started(b: ir.IRBuilder) -> None:
    """Count a product that was started in this step."""
    state = states.get(b.function)
    if state is not None:
        block, count = state.started or (b.block, 0)
        state.started = (b.block, count + 1 if block is b.block else 1)


def release_ring(b: ir.IRBuilder) -> None:
    """Wait for the products that were started before those of this step."""
    state = states.get(b.function)
    block, count = (state and state.started) or (b.block, 0)
    allowed = count if block is b.block else 0
    asm(b, f"wgmma.wait_group.sync.aligned {allowed};", VOID, "~{memory}", [], effect=True)


def finish_ring(b: ir.IRBuilder, ty: RingStage, st: Any) -> None:
    """Wait for everything: a block must not end while windows are on their way.

    The barrier is for blocks that acquired nothing, and so have not met since the mbarriers were made.
    """
    asm(b, "wgmma.wait_group.sync.aligned 0;", VOID, "~{memory}", [], effect=True)
    barrier(b)
    for i in range(ty.num_stages):
        number = b.add(st.acquired, const(I32, i))
        _wait(b, ty, st, number, b.icmp_signed("<", number, st.fetched))


def swap_mapped(b: ir.IRBuilder, context: Any, ty: MappedTensor, x: Any, new_ty: Any, new: Any) -> Any:
    """Keep the indices of a mapped tensor whose axes are swapped."""
    before = cgutils.create_struct_proxy(ty)(context, b, x)
    after = cgutils.create_struct_proxy(new_ty)(context, b, new)
    for i in range(ty.indexed):
        setattr(after, f"outer{i}", getattr(before, f"outer{i}"))
    return after._getvalue()


def index_mapped(b: ir.IRBuilder, context: Any, ty: MappedTensor, x: Any, part_ty: Any, part: Any, index: list) -> Any:
    """Note the indices of a part of a mapped tensor. Along an axis of stride 0 the map has one element."""
    whole = cgutils.create_struct_proxy(ty)(context, b, x)
    new = cgutils.create_struct_proxy(part_ty)(context, b, part)
    for i in range(ty.indexed):
        setattr(new, f"outer{i}", getattr(whole, f"outer{i}"))
    for i, (number, stride) in enumerate(zip(index, cgutils.unpack_tuple(b, whole.strides), strict=False)):
        same = b.icmp_signed("==", stride, const(I64, 0))
        setattr(new, f"outer{ty.indexed + i}", b.select(same, const(I32, 0), b.trunc(number, I32)))
    return new._getvalue()
