"""Linear layers whose weights are cut among ranks, and what goes between them (Shoeybi et al., 2019: Megatron-LM).

``by="columns"`` cuts the outputs: each rank has some features of the result. ``by="rows"`` cuts the inputs: each rank
has a part of every sum, and the parts are added. One behind the other, with an activation between, they need no
exchange but the sum at the end, which is `mlp`.

With ``sequence=True`` what lies between such pairs, norms and residuals, is shared out too (Korthikanti et al., 2022):
each rank has some tokens there, as `shard_sequence` cuts them. Tokens are gathered before the first layer, and the sum
is scattered after the second one: as many bytes as the sum alone.

The sum is taken in float32, in the order of the ranks, so it is the same on all of them; half precision rounds each
rank's part before.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, overload

import rocmkern
from rocmkern.calls.adapters.to_torch import as_given, as_torch
from rocmkern.calls.types import Activation, Array, ArrayLike
from rocmkern.decoder.names import QuantizedWeight
from rocmkern.distributed.positions import runs
from rocmkern.distributed.ranks import Ranks, ranks_of
from rocmkern.distributed.sequence import place_of
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.torch_tensors import gradient_of, torch_of
from rocmkern.tile.formats import format_named

CUTS = ("columns", "rows")
#: Of a linear layer.
Weight: TypeAlias = ArrayLike | QuantizedWeight


@overload
def shard_linear(
    weight: QuantizedWeight,
    by: Literal["columns", "rows"],
    *,
    unit: int = ...,
    rank: int | None = ...,
    size: int | None = ...,
    group: Any = ...,
) -> QuantizedWeight: ...
@overload
def shard_linear(
    weight: Array,
    by: Literal["columns", "rows"],
    *,
    unit: int = ...,
    rank: int | None = ...,
    size: int | None = ...,
    group: Any = ...,
) -> Array: ...
def shard_linear(
    weight: Any,
    by: Literal["columns", "rows"],
    *,
    unit: int = 1,
    rank: int | None = None,
    size: int | None = None,
    group: Any = None,
) -> Any:
    """A rank's part of the weights of a linear layer.

    Parameters
    ----------
    weight : array, ``[out, in]``, or QuantizedWeight
        Or a bias ``[out]``, by columns.
    by : {"columns", "rows"}
        Cut the outputs (rows of the array), or the inputs. Quantized weights are cut between blocks.
    unit : int
        Outputs or inputs that stay together, such as those of a head; shares are multiples of it. Where the weights
        behind are quantized and cut by rows, the outputs before must be cut at their blocks: the numbers of a block.
    rank, size, group : optional
        As in `sequence_positions`.

    Returns
    -------
    array or QuantizedWeight
        Contiguous; of the kind of `weight`.

    Raises
    ------
    ArgumentError
        There are fewer units than ranks, or a number of features that is no multiple of the unit.
    """
    if by not in CUTS:
        raise ArgumentError("by", repr(by), '"columns" or "rows"')
    rank, size = place_of(rank, size, group)
    if isinstance(weight, QuantizedWeight):
        return _shard_quantized(weight, by, unit, rank, size)
    axis = 0 if by == "columns" else 1
    part = share(weight.shape[axis], unit, rank, size)
    return _contiguous(weight[part] if axis == 0 else weight[:, part])


def _contiguous(x: Any) -> Any:
    """A copy, so that the whole array can go."""
    return x.copy() if torch_of(x) is None else x.clone()


def _shard_quantized(weight: QuantizedWeight, by: str, unit: int, rank: int, size: int) -> QuantizedWeight:
    if by == "columns":
        return QuantizedWeight(shard_linear(weight.blocks, "columns", unit=unit, rank=rank, size=size), weight.format)
    form = format_named(weight.format)
    blocks: Any = weight.blocks
    part = share(form.columns(blocks.shape[1]), unit if unit > 1 else form.elements, rank, size)
    if part.start % form.elements or part.stop % form.elements:
        allowed = f"shares that end between blocks of {form.elements} numbers of {weight.format}"
        raise ArgumentError("weight", f"features {part.start} to {part.stop} for rank {rank} of {size}", allowed)
    cut = blocks[:, part.start // form.elements * form.nbytes : part.stop // form.elements * form.nbytes]
    return QuantizedWeight(_contiguous(cut), weight.format)


def share(length: int, unit: int, rank: int, size: int) -> slice:
    """The part of some features that a rank has: whole units, as evenly as they can be shared out."""
    if length % unit:
        raise ArgumentError("weight", f"{length} features", f"a multiple of unit={unit}")
    if length // unit < size:
        raise ArgumentError("weight", f"{length} features", f"at least {size * unit}: {unit} for each of {size} ranks")
    ((start, stop),) = runs(length // unit, rank, size)
    return slice(start * unit, stop * unit)


def linear(
    x: Array,
    weight: Weight,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    *,
    by: Literal["columns", "rows"],
    sequence: bool = False,
    group: Any = None,
    timeout: float | None = None,
) -> Array:
    """Linear layer with this rank's part of the weights, as `shard_linear` cuts them.

    Parameters
    ----------
    x : array, ``[..., in]``
        By columns: all features, the same on all ranks; with `sequence` this rank's tokens of them, ``[tokens, in]``.
        By rows: this rank's features of all tokens.
    weight : array or QuantizedWeight
        This rank's part of ``[out, in]``.
    bias : array, optional
        By columns this rank's part; by rows all of it, the same on all ranks.
    activation : str, optional
        As in `rocmkern.linear`; by columns only, as a sum comes before it by rows.
    by : {"columns", "rows"}
    sequence : bool
        Whether tokens are shared out where features are not: before columns, and after rows.
    group, timeout
        As in `rocmkern.distributed.attention`.

    Returns
    -------
    array, ``[..., out]``
        By columns this rank's features; by rows all of them, the same on all ranks, or this rank's tokens of them.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PeerError, DeviceUnavailableError
        As `rocmkern.distributed.attention`. Shapes and options that ranks have agreed on once are not asked for again.
    """
    ranks = ranks_of(group)
    with ranks.call("linear", timeout):
        lengths = _agreed(ranks, "linear", {"x": x, "weight": weight, "bias": bias}, by, activation, sequence)
        if by == "columns":
            return _product(_gathered(ranks, x, lengths) if sequence else x, weight, bias, activation)
        own_bias = bias if ranks.rank == 0 else None
        return _summed(ranks, _product(x, weight, own_bias, None), sequence)


def mlp(
    x: Array,
    w_gate: Weight | None,
    w_up: Weight,
    w_down: Weight,
    *,
    activation: Activation = "silu",
    sequence: bool = False,
    group: Any = None,
    timeout: float | None = None,
) -> Array:
    """The MLP of a layer with this rank's part of the weights.

    Parameters
    ----------
    x : array, ``[..., in]``
        The same on all ranks; with `sequence` this rank's tokens, ``[tokens, in]``.
    w_gate, w_up : array or QuantizedWeight
        This rank's part of ``[hidden, in]``, by columns. ``w_gate=None``: no gate.
    w_down : array or QuantizedWeight
        Its part of ``[out, hidden]``, by rows.
    activation : {"silu", None, "gelu", "gelu_tanh", "relu"}
        As in `rocmkern.mlp`; with quantized weights and a gate "silu", "gelu" or "gelu_tanh".
    sequence, group, timeout
        As in `linear`.

    Returns
    -------
    array, ``[..., out]``
        The same on all ranks; with `sequence` this rank's tokens.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PeerError, DeviceUnavailableError
        As `linear`.
    """
    ranks = ranks_of(group)
    with ranks.call("mlp", timeout):
        arrays = {"x": x, "w_gate": w_gate, "w_up": w_up, "w_down": w_down}
        lengths = _agreed(ranks, "mlp", arrays, "columns", activation, sequence)
        whole = _gathered(ranks, x, lengths) if sequence else x
        return _summed(ranks, _own_mlp(whole, w_gate, w_up, w_down, activation), sequence)


def all_reduce(ranks: Ranks, x: Any) -> Any:
    """The sum over ranks of an array of each, the same on all: parts of it are summed by one rank each."""
    given = as_torch("x", x)
    flat = given.reshape(-1)
    lengths = [stop - start for rank in range(ranks.size) for start, stop in runs(flat.numel(), rank, ranks.size)]
    return as_given(ranks.all_gather(ranks.sum_scattered(flat, lengths), lengths).reshape(given.shape), x)


def _agreed(
    ranks: Ranks, operation: str, arrays: dict[str, Any], by: str, activation: Any, sequence: bool
) -> list[int]:
    """The tokens of each rank, where they are shared out before a layer."""
    x = arrays["x"]
    try:
        for name, array in arrays.items():
            torch = torch_of(array)
            if torch is not None and gradient_of(torch, array) is not None:
                allowed = f"none, as layers over ranks have no gradients: {name}.detach(), or `with torch.no_grad():`"
                raise ArgumentError(name, "a tensor that requires a gradient", allowed)
        if by not in CUTS:
            raise ArgumentError("by", repr(by), '"columns" or "rows"')
        if by == "rows" and activation is not None:
            raise ArgumentError("activation", repr(activation), 'None with by="rows": it is the sum that comes first')
        if sequence and x.ndim != 2:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", "[tokens, features] with sequence=True")
        if ranks.size > 1:
            ranks.check_place("x", as_torch("x", x))
    except ArgumentError as error:
        ranks.refuse(error)
        raise
    gathers = sequence and by == "columns"
    shape = tuple(x.shape)[1:] if gathers else tuple(x.shape) if by == "columns" else tuple(x.shape)[:-1]
    signature: dict[str, Any] = {
        "operation": operation,
        "shape of x": shape,
        "dtype": str(x.dtype).removeprefix("torch."),
        "by": by,
    }
    signature |= {"activation": activation, "sequence": sequence}
    agreed = ranks.agree(signature, [x.shape[0]] if gathers else [], once=not gathers)
    return [theirs[0] for theirs in agreed] if gathers else []


def _gathered(ranks: Ranks, x: Any, lengths: list[int]) -> Any:
    return as_given(ranks.all_gather(as_torch("x", x), lengths), x)


def _summed(ranks: Ranks, x: Any, sequence: bool) -> Any:
    if ranks.size == 1:
        return x
    if not sequence:
        return all_reduce(ranks, x)
    rows = [stop - start for rank in range(ranks.size) for start, stop in runs(x.shape[0], rank, ranks.size)]
    return as_given(ranks.sum_scattered(as_torch("x", x), rows), x)


def _product(x: Any, weight: Any, bias: Any, activation: Activation) -> Any:
    if isinstance(weight, QuantizedWeight):
        return rocmkern.quantized_linear(x, weight.blocks, weight.format, bias, activation)
    return rocmkern.linear(x, weight, bias, activation)


def _own_mlp(x: Any, gate: Any, up: Any, down: Any, activation: Activation) -> Any:
    if not any(isinstance(weight, QuantizedWeight) for weight in (gate, up, down)):
        return rocmkern.mlp(x, gate, up, down, activation=activation)
    if gate is None:
        return _product(_product(x, up, None, activation), down, None, None)
    g, u = _product(x, gate, None, None), _product(x, up, None, None)
    if activation == "silu":
        h = rocmkern.swiglu(g, u)
    elif activation in ("gelu", "gelu_tanh"):
        h = rocmkern.geglu(g, u, approximate="tanh" if activation == "gelu_tanh" else "none")
    else:
        raise ArgumentError("activation", repr(activation), '"silu", "gelu" or "gelu_tanh" with quantized weights')
    return _product(h, down, None, None)
