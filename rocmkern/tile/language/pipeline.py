"""Windows in shared memory: fetched, acquired, used in products, released.

A stage may have ``cfg.num_stages`` windows on their way while one is in use. Its type says nothing of where it is in
this circle: see `windows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.architectures import architecture
from rocmkern.tile.formats import RUN
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import (
    DTYPES,
    NONE,
    QUANTIZED,
    ConfigKind,
    QuantizedKind,
    StageKind,
    TensorKind,
    flag,
    integers,
    is_int,
    literal,
    refuse,
    show,
    want,
    whole_runs,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Quantized, Stage, Tensor, dtype_name

#: Targets on which one window may be on its way, not several.
ONE_WINDOW = ("cpu", "hip")


def _stage(cfg: Any, source: Any, n: Any, k: Any, like: Any = None, paged: Any = None) -> Any:
    arch = architecture(want(ConfigKind, cfg, "cfg").cfg.arch)
    if cfg.cfg.num_stages != 1 and arch.target in ONE_WINDOW:
        refuse(f"num_stages={cfg.cfg.num_stages}; on {arch.name} one window may be on its way, num_stages=1")
    quantized = isinstance(source, QuantizedKind)
    if not quantized and want(TensorKind, source, "the source").ndim != 2:
        refuse(f"the source must have 2 axes, got {show(source)}")
    given = like is not None and like != NONE
    dtype = want(TensorKind, like, "like").dtype if given else source.dtype
    if dtype != source.dtype and (quantized or source.dtype not in QUANTIZED):
        refuse(f"{show(source)} cannot be held as {dtype}")
    through = paged is not None and flag(paged, "paged")
    whole_runs(source, literal(k, "k"))
    kind = source.format if quantized else ""
    stage = StageKind(literal(n, "n"), literal(k, "k"), dtype, cfg.hw, source.dtype, through, kind)
    need = stage.n * stage.k * DTYPES[stage.dtype]
    if need > arch.shared_bytes:
        room = f"{arch.name} has {arch.shared_bytes} bytes of shared memory"
        refuse(f"{show(stage)} takes {need} bytes; {room}; use smaller blocks")
    return stage


@operation(_stage)
def stage(
    cfg: Config, source: Tensor | Quantized, n: int, k: int, like: Tensor | None = None, paged: bool = False
) -> Stage:
    """Room in shared memory for a window of ``n`` rows and ``k`` columns of the 2-D tensor or quantized ``source``.

    The stages of a kernel share the architecture's shared memory.

    Parameters
    ----------
    like : tensor, optional
        The window holds this tensor's dtype. Sources of int8, float8_e4m3fn and float8_e5m2 need it; others have it.
    paged : bool
        Whether `paged` will say where the rows are.
    """
    dtype = source.dtype if like is None else like.dtype
    return Stage(source, n, k, dtype_name(dtype), paged, cfg.num_stages)


def _paged(st: Any, cache: Any, head: Any, table: Any, stop: Any) -> Any:
    want(StageKind, st, "the stage")
    if not (isinstance(cache, TensorKind) and (cache.dtype, cache.ndim) == (st.source, 4)):
        refuse(f"the cache must be a tensor of {st.source} with 4 axes, got {show(cache)}")
    if not (isinstance(table, TensorKind) and (table.dtype, table.ndim) == ("int32", 1)):
        refuse(f"the table must be a tensor of int32 with 1 axis, got {show(table)}")
    integers(head=head, stop=stop)
    return st


@operation(_paged, consumes=("st",))
def paged(st: Stage, cache: Tensor, head: int, table: Tensor, stop: int) -> Stage:
    """Read the rows of a stage through a page table (consumes); before the first `fetch`.

    Row r is ``cache[table[r // L], head, r % L]`` for ``r < stop``, where L is the page size ``cache.shape[2]``. A
    row whose page the table or the cache does not have reads as 0 on a machine target.

    Parameters
    ----------
    st : Stage
        Made with ``paged=True``, of a source with the dtype and the columns of ``cache``.
    cache : tensor, [pages, heads, L, columns]
    head : int
    table : tensor, int32, [entries]
    stop : int
        Number of rows that exist.
    """
    st.windows = st.windows.paged()
    st.pages = cache[:, head], table, stop
    return st


def _fetch(st: Any, row0: Any, col0: Any = None) -> Any:
    for start in (row0,) if col0 is None else (row0, col0):
        if not is_int(start):
            refuse(f"a window starts at an integer, got {show(start)}")
    return want(StageKind, st, "the stage")


@operation(_fetch, consumes=("st",))
def fetch(st: Stage, row0: int, col0: int = 0) -> Stage:
    """Start to bring rows ``row0 .. row0 + n`` and columns ``col0 .. col0 + k`` of the source (consumes).

    What lies past the end of the source reads as 0. Windows are acquired in the order in which they were fetched.
    """
    st.windows = st.windows.fetch()
    if isinstance(st.source, Quantized) and col0 % st.k:
        refuse(
            f"a quantized source of {st.source.format.name} is read {RUN} columns at a time, from multiples of the "
            f"width on; got {st.k} columns from {col0} on"
        )
    st.fetched = (*st.fetched, (row0, col0))
    return st


def _argument(st: Any) -> Any:
    return want(StageKind, st)


@operation(_argument, consumes=("st",))
def acquire(st: Stage) -> Stage:
    """Wait for the fetched window and make it visible to the whole block (consumes): products may use the result."""
    st.windows = st.windows.acquire()
    st.window = np.zeros((st.n, st.k), np.float32)
    part = st.rows(*st.fetched[0])
    st.window[: part.shape[0], : part.shape[1]] = part
    st.fetched = st.fetched[1:]
    return st


@operation(_argument, consumes=("st",))
def release(st: Stage) -> Stage:
    """Say that the block is done with the window in use (consumes)."""
    st.windows, st.window = st.windows.release(), np.full((st.n, st.k), np.nan, np.float32)
    return st


def _finish(st: Any) -> Any:
    want(StageKind, st)
    return NONE


@operation(_finish, consumes=("st",))
def finish(st: Stage) -> None:
    """Say that the stage is not used any more, and wait for what is on its way (consumes).

    A kernel that ends while a window is on its way is refused.
    """
    st.windows = st.windows.finish()
