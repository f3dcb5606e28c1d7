"""Elementwise operations: one number out of the numbers at one place.

Most are declared by nothing but their expression (`elementwise`), and a kernel's author has `map` for more. Those below
them need more than the numbers: the column they are in, or a dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from rocmkern.tile.language.expression import Expression, apply, trace
from rocmkern.tile.language.kernel import NEG_INF, Config
from rocmkern.tile.language.kinds import (
    FunctionKind,
    RowsKind,
    TensorKind,
    TileKind,
    float_rows,
    integers,
    is_int,
    is_rows,
    is_scalar,
    literal,
    match,
    refuse,
    rows_of,
    same_rows,
    same_tile,
    show,
    storable,
    want,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Rows, Tensor, Tile

F = TypeVar("F", bound=Callable[..., Any])


def _with(first: Any, other: Any) -> None:
    """What an elementwise operation takes beside its first argument: a tile like it, rows of it, or a number."""
    if isinstance(other, TileKind) and isinstance(first, TileKind):
        match(first, other)
    elif is_rows(other, "f32"):
        same_rows(first, other)
    elif isinstance(other, RowsKind):
        float_rows(other)
    elif not is_scalar(other):
        refuse(f"cannot combine {show(first)} with {show(other)}")


def _of_tile(first: Any, *others: Any) -> Any:
    want(TileKind, first)
    for other in others:
        _with(first, other)
    return first


def _of_rows(first: Any, *others: Any) -> Any:
    float_rows(first)
    for other in others:
        _with(first, other)
    return first


def _of_either(first: Any, *others: Any) -> Any:
    return _of_tile(first, *others) if isinstance(first, TileKind) else _of_rows(first, *others)


def computed(expression: Expression, first: np.ndarray, *others: Any) -> np.ndarray:
    """What an expression is of a tile or of rows, and of others: rows are one number for each row of a tile."""
    along = (x[:, None] if first.ndim == 2 and getattr(x, "ndim", 0) == 1 else x for x in others)
    return expression.numbers(first, *along)


def elementwise(rule: Callable[..., Any], consumes: tuple[str, ...] = ("x",)) -> Callable[[F], F]:
    """Declare an operation by a function of numbers, which is traced: see `expression`.

    Parameters
    ----------
    rule : callable
        As in `operation`: the first argument is a tile or rows of f32, and so is the result.
    consumes : tuple of str
        The parameters whose tiles are consumed.
    """

    def declared(scalar: F) -> F:
        expression = trace(scalar)

        def meaning(*given: Any) -> np.ndarray:
            return computed(expression, *given)

        meaning.__name__, meaning.__qualname__, meaning.__doc__ = scalar.__name__, scalar.__qualname__, scalar.__doc__
        meaning.__module__, meaning.__annotations__ = scalar.__module__, scalar.__annotations__
        meaning.__signature__ = inspect.signature(scalar)  # type: ignore[attr-defined]
        return operation(rule, consumes, expression, scalar)(meaning)  # type: ignore[return-value]

    return declared


# ---------------------------------------------------------------------------------------------------------------- map


def _map(fn: Any, *values: Any) -> Any:
    expression = want(FunctionKind, fn, "the function").expression
    if expression is None:
        refuse(fn.refusal)
    if len(values) != len(expression.arguments):
        wanted = f"{len(expression.arguments)} values for {', '.join(expression.arguments)} of {expression.name}"
        refuse(f"needs {wanted}, got {len(values)}")
    return _of_either(*values)


@operation(_map, consumes=("values",))
def map(fn: Callable[..., Any], *values: Tile | Rows | float) -> Tile | Rows:
    """``fn`` of the numbers at each place of a tile, or of rows (consumes the tiles).

    ::

        def soft_cap(score, cap):
            return cap * T.tanh(score / cap)

        scores = T.map(soft_cap, scores, 30.0)

    Parameters
    ----------
    fn : function
        Of one float32 number for each value. It is ordinary Python: arithmetic, comparisons, `where`, `minimum`,
        `maximum`, `exp2`, `log2`, `sqrt`, `tanh`, `absolute`, `multiply_add`, the activations, and functions of its own
        kind. It is called once, with stand-ins for numbers (see `expression`), so no number in it decides what Python
        does next. The kernel names it: it is a function of the kernel's module.
    values : tile, rows or number
        The first one is a tile or float32 rows, and the result is one too. Others are tiles of the same shape, float32
        rows, of which a tile's row has one number, or numbers.
    """
    return computed(trace(fn), *values)


# ----------------------------------------------------------------------------------------------- of their expressions


@elementwise(_of_either)
def exp2(x: Tile | Rows) -> Tile | Rows:
    """``2 ** x`` of rows, or of a tile (consumed)."""
    return apply("exp2", x)


@elementwise(_of_rows, consumes=())
def log2(x: Rows) -> Rows:
    """Rows: base-2 logarithm; ``-inf`` at 0."""
    return apply("log2", x)


@elementwise(_of_rows, consumes=())
def sqrt(x: Rows) -> Rows:
    """Rows: square root; NaN below 0."""
    return apply("sqrt", x)


@elementwise(_of_rows, consumes=())
def reciprocal_or_zero(x: Rows) -> Rows:
    """Rows: ``1 / x``, and 0 where ``x`` is 0 (a row that sees nothing)."""
    return apply("reciprocal_or_zero", x)


@elementwise(_of_tile)
def tanh(x: Tile) -> Tile:
    """Hyperbolic tangent (consumes)."""
    return apply("tanh", x)


@elementwise(_of_tile)
def absolute(x: Tile) -> Tile:
    """Absolute value (consumes)."""
    return abs(x)


#: erf(x) = x + x * ERF_NEAR(x ** 2) for |x| < 0.85, and 1 - 2 ** ERF_FAR(|x|) up to 4, from where on it rounds to 1;
#: highest power first, minimax fits in relative error (6e-9 and 2e-9).
ERF_NEAR = (-0.000631512719, 0.00505109443, -0.0268025475, 0.112827174, -0.376125718, 0.12837916)
ERF_FAR = (
    0.000293845311, -0.00449812954, 0.0324881889, -0.150799155, -0.918302598, -1.62744808, -0.000150784067,
)  # fmt: skip


def polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """A polynomial in a traced number, by Horner's rule; highest power first."""
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = apply("fma", total, x, coefficient)
    return total


@elementwise(_of_either)
def erf(x: Tile | Rows) -> Tile | Rows:
    """Error function of rows, or of a tile (consumed), to 2 units in the last place; NaN stays NaN."""
    size = abs(x)
    near = apply("fma", x, polynomial(x * x, ERF_NEAR), x)
    far = 1.0 - apply("exp2", polynomial(apply("select", size > 4.0, 4.0, size), ERF_FAR))
    return apply("select", size < 0.85, near, apply("select", x < 0.0, -far, far))


@elementwise(_of_either)
def silu(x: Tile | Rows) -> Tile | Rows:
    """``x / (1 + exp(-x))`` of rows, or of a tile (consumed); -0 at minus infinity."""
    return apply("silu", x)


@elementwise(_of_either)
def gelu(x: Tile | Rows) -> Tile | Rows:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` of rows, or of a tile (consumed); -0 at minus infinity."""
    return apply("gelu", x)


@elementwise(_of_either)
def gelu_tanh(x: Tile | Rows) -> Tile | Rows:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` of rows, or of a tile (consumed); -0 at -inf."""
    return apply("gelu_tanh", x)


@elementwise(_of_either)
def relu(x: Tile | Rows) -> Tile | Rows:
    """``max(x, 0)`` of rows, or of a tile (consumed); NaN stays NaN."""
    return apply("select", x <= 0.0, 0.0, x)


def _three_tiles(tile: Any, factor: Any, summand: Any) -> Any:
    for other in (factor, summand):
        same_tile(tile, other)
    return tile


@elementwise(_three_tiles, consumes=("tile",))
def multiply_add(tile: Tile, factor: Tile, summand: Tile) -> Tile:
    """``tile * factor + summand``, rounded once; consumes ``tile`` only."""
    return apply("fma", tile, factor, summand)


def _at_least(tile: Any, bound: Any) -> Any:
    want(TileKind, tile)
    if not (isinstance(bound, RowsKind) or is_scalar(bound)):
        refuse(f"the bound must be rows or a number, got {show(bound)}")
    return _of_tile(tile, bound)


@elementwise(_at_least, consumes=("tile",))
def at_least(tile: Tile, bound: Rows | float) -> Tile:
    """1 where ``tile >= bound``, else 0, also for NaN; ``bound`` is a number or rows (consumes)."""
    return apply("select", tile >= bound, 1.0, 0.0)


@elementwise(same_tile, consumes=("tile", "visible"))
def mask_where(tile: Tile, visible: Tile) -> Tile:
    """``-inf`` where ``visible`` is 0 (consumes both)."""
    return apply("select", visible != 0.0, tile, NEG_INF)


# ----------------------------------------------------------------------------------------- of more than their numbers


def _multiply_rows(tile: Any, scale: Any, factor: Any) -> Any:
    want(TileKind, tile)
    for rows in (scale, factor):
        same_rows(tile, float_rows(rows))
    return tile


@operation(_multiply_rows, consumes=("tile",))
def multiply_rows(tile: Tile, scale: Rows, factor: Rows) -> Tile:
    """``tile * scale * factor`` with rows, of which ``scale * factor`` may overflow or vanish (consumes).

    Where it does neither, a target may find it first.
    """
    return tile * scale[:, None] * factor[:, None]


def _rounded(tile: Any, like: Any) -> Any:
    storable(want(TensorKind, like, "like"))
    return want(TileKind, tile)


@operation(_rounded, consumes=("tile",))
def rounded(tile: Tile, like: Tensor) -> Tile:
    """The values as they would come back from ``like``: rounded to its dtype, to nearest even (consumes the tile)."""
    return tile.astype(like.dtype).astype(np.float32)


def _pad_columns(tile: Any, col0: Any, stop: Any, value: Any) -> Any:
    for name, scalar, right in (("col0", col0, is_int), ("stop", stop, is_int), ("value", value, is_scalar)):
        if not right(scalar):
            refuse(f"{name} must be a number, got {show(scalar)}")
    return want(TileKind, tile)


@operation(_pad_columns, consumes=("tile",))
def pad_columns(tile: Tile, col0: int, stop: int, value: float) -> Tile:
    """``value`` in the columns ``col0 + c`` from ``stop`` on, which lie past the end of a tensor (consumes)."""
    tile[:, max(stop - col0, 0) :] = value
    return tile


def _distance(cfg: Any, position: Any, col0: Any, n: Any) -> Any:
    rows_of(position, "i32", "position")
    integers(col0=col0)
    return TileKind(position.m, literal(n, "n"), position.hw)


@operation(_distance)
def distance(cfg: Config, position: Rows, col0: int, n: int) -> Tile:
    """``position[r] - (col0 + c)``: how far each column lies before each row's position."""
    return (position[:, None] - (col0 + np.arange(n))[None, :]).astype(np.float32)


def _mask_outside(tile: Any, col0: Any, low: Any, high: Any) -> Any:
    want(TileKind, tile)
    integers(col0=col0)
    for bound in (low, high):
        if not (is_rows(bound, "i32") and bound.m == tile.m):
            refuse(f"bounds of {show(tile)} must be {tile.m} rows of i32, got {show(bound)}")
    return tile


@operation(_mask_outside, consumes=("tile",))
def mask_outside(tile: Tile, col0: int, low: Rows, high: Rows) -> Tile:
    """``-inf`` where column ``col0 + c`` lies outside ``low[r] .. high[r]``, both inclusive (consumes)."""
    c = col0 + np.arange(tile.shape[1])[None, :]
    inside = (c >= low[:, None]) & (c <= high[:, None])
    return np.where(inside, tile, np.float32(NEG_INF))
