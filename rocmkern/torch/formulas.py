"""The gradients of the operators as formulas: what of a call is kept, and what is computed of it.

Most are one call of an operator of this library, ``rocmkern::NAME_backward`` or another one, so that a compiled graph
has it as it is. What is only moved or added is left to PyTorch. Sums are of float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Gradients = dict[str, Any]


class GradientCall(NamedTuple):
    """What a formula gets.

    Attributes
    ----------
    values : dict
        The arguments of the operator by their names in its schema: the tensors that were kept, and all others that were
        given.
    grads : tuple of torch.Tensor or None
        Of the results; None where nothing depends on one.
    results : tuple of torch.Tensor
        Those that were kept.
    needs : frozenset of str
        The arguments whose gradients are asked for.
    like : dict
        Shape and dtype of each argument that can have a gradient.
    operator : callable
        What an operator gives, of its name and its arguments by theirs.
    """

    values: dict[str, Any]
    grads: tuple[Any, ...]
    results: tuple[Any, ...]
    needs: frozenset[str]
    like: dict[str, tuple[Any, torch.dtype]]
    operator: Callable[[str, dict[str, Any]], Any]


Spares = Callable[[frozenset[str], dict[str, Any]], tuple[str, ...]]


def _spares(**used_for: str) -> Spares:
    """Sides of a product, by the argument whose gradient alone their numbers are for; none with an activation.

    For the slope of an activation the product is computed again, of both sides.
    """

    def spares(needs: frozenset[str], others: dict[str, Any]) -> tuple[str, ...]:
        if others.get("activation") not in (None, "none"):
            return ()
        return tuple([n for n, other in used_for.items() if other not in needs])

    return spares


_NONE = _spares()


class Formula(NamedTuple):
    """The gradient of an operator.

    Attributes
    ----------
    backward : callable
        From a `GradientCall` to gradients by the names of the arguments. What is not asked for may be there or not.
    of : tuple of str
        The arguments that have a gradient.
    saves : tuple of str
        The tensors among the arguments that are kept.
    keeps : tuple of int
        Places of the results that are kept.
    without : tuple of int
        Places of the results that never ask for a gradient.
    forward : str
        Name of the overload that is called instead, where the operator itself does not give all that is kept.
    spares : callable
        Those of `saves` that are not kept, as their numbers do not matter: from the arguments whose gradients are asked
        for, and the values that are no tensors.
    """

    backward: Callable[[GradientCall], Gradients]
    of: tuple[str, ...]
    saves: tuple[str, ...] = ()
    keeps: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    forward: str = ""
    spares: Spares = _NONE


def by_operation(
    name: str,
    of: tuple[str, ...],
    *,
    saves: tuple[str, ...] | None = None,
    results: tuple[tuple[str, int], ...] = (),
    grads: tuple[str, ...] = ("dout",),
    without: tuple[int, ...] = (),
    asked: dict[str, str] | None = None,
    needs: bool = False,
    drops: tuple[str, ...] = (),
    forward: str = "",
    spares: Spares = _NONE,
) -> Formula:
    """The formula that is one call of an operator that gives gradients in the order of the arguments.

    Parameters
    ----------
    name : str
        Of that operator.
    of : tuple of str
        The arguments that have a gradient, in the order in which it gives them. One that was not given has none.
    saves : tuple of str, optional
        The tensors that it takes of the forward call; those of `of` by default.
    results : tuple of (str, int)
        Its names of results of the forward call, and their places.
    grads : tuple of str
        Its names of the gradients of the results.
    without : tuple of int
        As in `Formula`.
    asked : dict, optional
        The flags that ask for some of the gradients, by the arguments: without one there is no such gradient.
    needs : bool
        Whether it has a parameter ``needs`` for the names of the arguments whose gradients are wanted.
    drops : tuple of str
        Arguments of the forward call that it has not got.
    forward : str
        As in `Formula`.
    spares : callable
        As in `Formula`.
    """
    saves = of if saves is None else saves
    asked = {} if asked is None else asked

    def backward(call: GradientCall) -> Gradients:
        values = {n: x for n, x in call.values.items() if n not in drops}
        values |= {n: kept for (n, _), kept in zip(results, call.results, strict=True)}
        values |= {n: grad for n, grad in zip(grads, call.grads, strict=False) if grad is not None}
        if grads[0] not in values:  # a later result was used alone
            like = call.results[0] if results else next(x for x in call.grads if x is not None)
            values[grads[0]] = torch.zeros_like(like)
        for n in spares(call.needs, call.values):
            values[n] = _stand_in(values[grads[0]], *call.like[n])
        order = [n for n in of if n in call.like and (n in call.needs or not (needs or n in asked))]
        values |= {flag: n in order for n, flag in asked.items()}
        if needs:
            values["needs"] = order
        found = call.operator(name, values)
        return dict(zip(order, found if isinstance(found, (tuple, list)) else (found,), strict=True))

    places = tuple(place for _, place in results)
    return Formula(backward, of, saves, keeps=places, without=without, forward=forward, spares=spares)


def _stand_in(beside: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose numbers do not matter: one for all of them."""
    return beside.new_zeros((), dtype=dtype).expand(shape)


def _attention(forward: str, drops: tuple[str, ...] = ()) -> Formula:
    """Of attention, whose operator without ``lse`` is called as the one with it."""
    more = ("bias", "sinks", "alibi_slopes")
    return by_operation(
        "flash_attention_backward",
        ("q", "k", "v", *more),
        saves=("q", "k", "v", *more, "mask", "seqlens_k", "leftpad_k", "cu_seqlens_q", "cu_seqlens_k"),
        results=(("o", 0), ("lse", 1)),
        grads=("dout", "dlse"),
        asked={n: f"return_d{n}" for n in more},
        drops=drops,
        forward=forward,
    )


def _norm_of_sum() -> Formula:
    """Of `rms_norm` with a residual, from the sum that it gives: both that were added have its gradient."""
    of_sum = by_operation(
        "rms_norm_backward",
        ("x", "weight"),
        saves=("weight",),
        results=(("x", 1),),
        grads=("dout", "dresidual"),
        drops=("residual",),
    )

    def backward(call: GradientCall) -> Gradients:
        found = of_sum.backward(call)
        return {**found, "residual": found["x"]}

    return of_sum._replace(backward=backward, of=("x", "weight", "residual"))


def _add_residual(call: GradientCall) -> Gradients:
    (dout,) = call.grads
    return {"x": dout, "residual": dout}


def _apply_mask(call: GradientCall) -> Gradients:
    (dout,), mask = call.grads, call.values.get("mask")
    if mask is not None and mask.dtype == torch.bool:
        return {"scores": torch.where(mask, dout, 0.0)}
    found = {"scores": dout}
    if "mask" in call.needs:
        shape, dtype = call.like["mask"]
        found["mask"] = dout.float().sum_to_size(shape).to(dtype)
    return found


def _clamp(call: GradientCall) -> Gradients:
    x, (dout,) = call.values["x"], call.grads
    low, high = call.values.get("min"), call.values.get("max")
    inside = torch.ones_like(x, dtype=torch.bool)
    inside = inside if low is None else inside & ~(x < low)
    inside = inside if high is None else inside & ~(x > high)
    return {"x": torch.where(inside, dout, 0.0)}


def _embedding(call: GradientCall) -> Gradients:
    """The numbers of the table do not matter: it is not kept."""
    (dout,) = call.grads
    table = _stand_in(dout, *call.like["table"])
    indices, check = call.values["indices"], call.values.get("check", False)
    return {"table": torch.ops.rocmkern.embedding_backward(dout, table, indices, check=check)}


def _scale(call: GradientCall) -> Gradients:
    return {"x": torch.ops.rocmkern.scale(call.grads[0], call.values["factor"])}


def _transpose(call: GradientCall) -> Gradients:
    (dout,), axes = call.grads, call.values.get("axes")
    rank = dout.dim()
    order = [rank - 1 - axis for axis in range(rank)] if axes is None else [axis % rank for axis in axes]
    return {"x": torch.ops.rocmkern.transpose(dout, [order.index(axis) for axis in range(rank)])}


def _repeat_kv(call: GradientCall) -> Gradients:
    heads = 1 if call.values.get("layout", "bhsd") == "bhsd" else 2
    return {"x": _group_sums(call.grads[0], heads, call.like["x"][0][heads])}


def _group_sums(x: torch.Tensor, axis: int, heads: Any) -> torch.Tensor:
    """The sum of the query heads of each key head, which lie side by side in an axis."""
    return x.unflatten(axis, (heads, -1)).sum(axis + 1, dtype=torch.float32).to(x.dtype)


def _qk_scores(call: GradientCall) -> Gradients:
    """``dq = scale ds @ k`` and ``dk = scale ds^T @ q``, summed over the query heads that share one."""
    (ds,), layout, scale = call.grads, call.values.get("layout", "bhsd"), call.values.get("scale")
    of_k, _ = call.like["k"]
    ds = torch.ops.rocmkern.scale(ds, of_k[-1] ** -0.5 if scale is None else scale)
    found = {}
    if "q" in call.needs:
        found["q"] = torch.ops.rocmkern.weighted_values(ds, call.values["k"], layout=layout)
    if "k" in call.needs:
        found["k"] = _products_over_queries(ds, call.values["q"], layout, of_k)
    return found


def _weighted_values(call: GradientCall) -> Gradients:
    """``dp = dout @ v^T`` and ``dv = p^T @ dout``, summed over the query heads that share one."""
    (dout,), layout = call.grads, call.values.get("layout", "bhsd")
    found = {}
    if "p" in call.needs:
        found["p"] = torch.ops.rocmkern.qk_scores(dout, call.values["v"], scale=1.0, layout=layout)
    if "v" in call.needs:
        found["v"] = _products_over_queries(call.values["p"], dout, layout, call.like["v"][0])
    return found


def _products_over_queries(p: torch.Tensor, x: torch.Tensor, layout: str, shape: Any) -> torch.Tensor:
    """``p^T @ x`` for each key head, its query heads as more rows of the sum; in `layout`."""
    x = x.transpose(1, 2) if layout == "bshd" else x
    heads = shape[2 if layout == "bshd" else 1]
    rows = [y.unflatten(1, (heads, -1)).flatten(2, 3) for y in (p, x)]
    found = torch.ops.rocmkern.matmul(rows[0].transpose(-1, -2), rows[1])
    return found.transpose(1, 2) if layout == "bshd" else found


def _merge_attention(call: GradientCall) -> Gradients:
    """``out = sum_i w_i o_i`` with ``w_i = exp(lse_i - lse)``; ``lse = log(sum_i exp(lse_i))``.

    So ``do_i = w_i dout`` and ``dlse_i = w_i (dlse + dout . (o_i - out))``, 0 where nothing is seen.
    """
    (dout, dlse), (out, lse) = call.grads, call.results
    rows_second = call.values.get("layout", "bhsd") == "bshd"
    found = {}
    for n in ("1", "2"):
        o, lse_of = call.values["o" + n], call.values["lse" + n]
        weight = torch.where(lse_of == -torch.inf, 0.0, torch.exp(lse_of - lse))
        along = 0.0 if dlse is None else dlse
        if dout is not None:
            wide = weight.transpose(-1, -2) if rows_second or o.dim() == 3 else weight
            found["o" + n] = (wide[..., None] * dout).to(o.dtype)
            dots = (dout.float() * (o.float() - out.float())).sum(-1)
            along = along + (dots.transpose(-1, -2) if rows_second or o.dim() == 3 else dots)
        found["lse" + n] = torch.where(weight == 0.0, 0.0, weight * along)
    return found


#: By the name of an overload: ``"rocmkern::linear"``, ``"rocmkern::flash_attention.lse"``.
FORMULAS: dict[str, Formula] = {
    f"rocmkern::{name}": formula
    for name, formula in {
        "add_residual": Formula(_add_residual, ("x", "residual")),
        "apply_mask": Formula(_apply_mask, ("scores", "mask"), ("mask",)),
        "clamp": Formula(_clamp, ("x",), ("x",)),
        "decode_attention": _attention("lse", drops=("num_splits",)),
        "decode_attention.lse": _attention("", drops=("num_splits",)),
        "embedding": Formula(_embedding, ("table",), ("indices",)),
        "flash_attention": _attention("lse"),
        "flash_attention.lse": _attention(""),
        "geglu": by_operation("geglu_backward", ("gate", "up")),
        "layer_norm": by_operation("layer_norm_backward", ("x", "weight", "bias")),
        "linear": by_operation(
            "linear_backward", ("x", "weight", "bias"), needs=True, spares=_spares(x="weight", weight="x")
        ),
        "linear_cross_entropy": by_operation(
            "linear_cross_entropy_backward",
            ("x", "weight", "bias"),
            saves=("x", "weight", "bias", "target"),
            results=(("lse", 1),),
            grads=("dloss",),
            without=(1,),
            needs=True,
        ),
        "matmul": by_operation("matmul_backward", ("a", "b", "bias"), needs=True, spares=_spares(a="b", b="a")),
        "merge_attention": Formula(
            _merge_attention, ("o1", "lse1", "o2", "lse2"), ("o1", "lse1", "o2", "lse2"), keeps=(0, 1)
        ),
        "mlp": by_operation("mlp_backward", ("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down"), needs=True),
        "qk_scores": Formula(_qk_scores, ("q", "k"), ("q", "k"), spares=_spares(q="k", k="q")),
        "quantized_linear": by_operation(
            "quantized_linear_backward",
            ("x", "bias"),
            saves=("x", "blocks", "bias"),
            needs=True,
            spares=_spares(x="blocks"),
        ),
        "repeat_kv": Formula(_repeat_kv, ("x",)),
        "rms_norm": by_operation("rms_norm_backward", ("x", "weight")),
        "rms_norm.residual": _norm_of_sum(),
        "rope": by_operation("rope_backward", ("x",), saves=("positions", "block_positions", "freq_factors")),
        "scale": Formula(_scale, ("x",)),
        "softmax": by_operation("softmax_backward", ("x",), saves=(), results=(("y", 0),)),
        "swiglu": by_operation("swiglu_backward", ("gate", "up")),
        "transpose": Formula(_transpose, ("x",)),
        "weighted_values": Formula(_weighted_values, ("p", "v"), ("p", "v"), spares=_spares(p="v", v="p")),
    }.items()
}
