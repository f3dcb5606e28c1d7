"""What the operators give: shapes and dtypes of their results, from those of their arguments.

A rule gets the public arguments of a call, tensors among them whose sizes may be symbols: it adds, multiplies and
divides sizes, and never asks what a size is. What the operation checks is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rocmkern.tile.formats import FORMATS

#: Shape and dtype.
Result = tuple[tuple[Any, ...], torch.dtype]


class Results(NamedTuple):
    """What an operation gives.

    Attributes
    ----------
    rule : callable
        From the public arguments to all results that there can be.
    second : str
        The argument that asks for the second result; "" where it does not depend on one.
    written : tuple of str
        Arguments that are written in place, and returned.
    always_into : bool
        Whether the operator is one that writes to ``out`` only.
    many : bool
        Whether it depends on the arguments how many results there are: then they are a list.
    pair : bool
        Whether there are two results, whatever the arguments.
    """

    rule: Callable[..., tuple[Result, ...]]
    second: str = ""
    written: tuple[str, ...] = ()
    always_into: bool = False
    many: bool = False
    pair: bool = False


def _like_first(**given: Any) -> tuple[Result]:
    x = next(iter(given.values()))
    return ((tuple(x.shape), x.dtype),)


def _rms_norm(x: Any, residual: Any = None, **_: Any) -> tuple[Result, ...]:
    return ((tuple(x.shape), x.dtype),) * (1 if residual is None else 2)


def _gated(gate: Any, up: Any = None, **_: Any) -> tuple[Result]:
    shape = gate.shape if up is not None else (*gate.shape[:-1], gate.shape[-1] // 2)
    return ((tuple(shape), gate.dtype),)


def _like(*names: str) -> Callable[..., tuple[Result, ...]]:
    """Gradients of the arguments of these names that are given."""

    def rule(**given: Any) -> tuple[Result, ...]:
        arrays = [given[name] for name in names if given.get(name) is not None]
        return tuple((tuple(x.shape), x.dtype) for x in arrays)

    return rule


def _needed(*names: str) -> Callable[..., tuple[Result, ...]]:
    """Gradients of the arguments of these names that are given, or of those that ``needs`` names."""

    def rule(needs: Any = None, **given: Any) -> tuple[Result, ...]:
        return _like(*(name for name in names if needs is None or name in needs))(**given)

    return rule


def _attention(q: Any, k: Any, v: Any, layout: str = "bhsd", cu_seqlens_q: Any = None, **_: Any) -> tuple[Result, ...]:
    lse: tuple[Any, ...]
    if cu_seqlens_q is not None:
        lse = q.shape[1], q.shape[0]
    else:
        lse = tuple(q.shape[:3]) if layout == "bhsd" else (q.shape[0], q.shape[2], q.shape[1])
    return ((*q.shape[:-1], v.shape[-1]), q.dtype), (lse, torch.float32)


def _attention_backward(**given: Any) -> tuple[Result, ...]:
    asked = [name for name in ("bias", "sinks", "alibi_slopes") if given.get(f"return_d{name}")]
    return _like("q", "k", "v", *asked)(**given)


def _paged_attention(q: Any, value_cache: Any, **_: Any) -> tuple[Result, ...]:
    lse = (q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (q.shape[1], q.shape[0])
    return ((*q.shape[:-1], value_cache.shape[-1]), q.dtype), (lse, torch.float32)


def _merge_attention(o1: Any, lse1: Any, **_: Any) -> tuple[Result, ...]:
    return (tuple(o1.shape), o1.dtype), (tuple(lse1.shape), torch.float32)


def _qk_scores(q: Any, k: Any, layout: str = "bhsd", **_: Any) -> tuple[Result]:
    heads, rows = (1, 2) if layout == "bhsd" else (2, 1)
    return (((q.shape[0], q.shape[heads], q.shape[rows], k.shape[rows]), q.dtype),)


def _weighted_values(p: Any, v: Any, layout: str = "bhsd", **_: Any) -> tuple[Result]:
    batch, heads, rows = p.shape[:3]
    return (((batch, *((heads, rows) if layout == "bhsd" else (rows, heads)), v.shape[-1]), p.dtype),)


def _repeat_kv(x: Any, n_rep: Any, layout: str = "bhsd", **_: Any) -> tuple[Result]:
    shape = list(x.shape)
    shape[1 if layout == "bhsd" else 2] *= n_rep
    return ((tuple(shape), x.dtype),)


def _causal_mask(sq: Any, sk: Any, dtype: torch.dtype = torch.float32, **_: Any) -> tuple[Result]:
    return (((sq, sk), dtype),)


def _matmul(a: Any, b: Any, transpose_b: bool = False, **_: Any) -> tuple[Result]:
    rows = a.shape[-2:-1]
    columns = () if b.dim() == 1 else (b.shape[-2 if transpose_b else -1],)
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (((*leading, *rows, *columns), a.dtype),)


def _rows_of(name: str) -> Callable[..., tuple[Result]]:
    """A product of rows of ``x`` with the rows of the weights of this name."""

    def rule(x: Any, **given: Any) -> tuple[Result]:
        return (((*x.shape[:-1], given[name].shape[0]), x.dtype),)

    return rule


def _like_table(table: Any, **_: Any) -> tuple[Result]:
    return ((tuple(table.shape), table.dtype),)


def _linear_cross_entropy(x: Any, reduction: str = "mean", **_: Any) -> tuple[Result, ...]:
    rows = tuple(x.shape[:-1])
    return (rows if reduction == "none" else (), torch.float32), (rows, torch.float32)


def _embedding(table: Any, indices: Any, **_: Any) -> tuple[Result]:
    return (((*indices.shape, table.shape[1]), table.dtype),)


def _transpose(x: Any, axes: Any = None, **_: Any) -> tuple[Result]:
    order = reversed(range(x.dim())) if axes is None else axes
    return ((tuple(x.shape[axis] for axis in order), x.dtype),)


def _dequantize(blocks: Any, format: str = "q4_0", dtype: torch.dtype = torch.float32, **_: Any) -> tuple[Result]:
    kind = FORMATS[format]
    return (((*blocks.shape[:-1], blocks.shape[-1] // kind.nbytes * kind.elements), dtype),)


def _quantize(x: Any, format: str, **_: Any) -> tuple[Result]:
    kind = FORMATS[format]
    return (((*x.shape[:-1], x.shape[-1] // kind.elements * kind.nbytes), torch.uint8),)


def _dequantize_rms_norm(blocks: Any, weight: Any, **_: Any) -> tuple[Result]:
    return (((*blocks.shape[:-1], weight.shape[0]), weight.dtype),)


def _sample(logits: Any, **_: Any) -> tuple[Result]:
    return (((logits.shape[0],), torch.int32),)


def _nothing(**_: Any) -> tuple[Result, ...]:
    return ()


#: By the names of the public operations. One without an entry has no operator: PyTorch's tracers end a graph
#: before it.
RESULTS: dict[str, Results] = {
    **dict.fromkeys(
        (
            "add_residual",
            "apply_mask",
            "clamp",
            "layer_norm",
            "rope",
            "rope_backward",
            "scale",
            "softmax",
            "softmax_backward",
        ),
        Results(_like_first),
    ),
    **dict.fromkeys(("flash_attention", "decode_attention"), Results(_attention, "return_lse")),
    **dict.fromkeys(("geglu", "swiglu"), Results(_gated)),
    "embedding_backward": Results(_like_table),
    **dict.fromkeys(("geglu_backward", "swiglu_backward"), Results(_like("gate", "up"), many=True)),
    "flash_attention_backward": Results(_attention_backward, many=True),
    "layer_norm_backward": Results(_like("x", "weight", "bias"), many=True),
    "rms_norm_backward": Results(_like("x", "weight"), many=True),
    "causal_mask": Results(_causal_mask, always_into=True),
    "dequantize": Results(_dequantize),
    "dequantize_rms_norm": Results(_dequantize_rms_norm),
    "embedding": Results(_embedding),
    "linear": Results(_rows_of("weight")),
    "linear_cross_entropy": Results(_linear_cross_entropy, pair=True),
    "linear_cross_entropy_backward": Results(_needed("x", "weight", "bias"), many=True),
    "linear_backward": Results(_needed("x", "weight", "bias"), many=True),
    "matmul": Results(_matmul),
    "matmul_backward": Results(_needed("a", "b", "bias"), many=True),
    "merge_attention": Results(_merge_attention, pair=True),
    "mlp": Results(_rows_of("w_down")),
    "mlp_backward": Results(_needed("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down"), many=True),
    "paged_attention": Results(_paged_attention, "return_lse"),
    "qk_scores": Results(_qk_scores),
    "quantize": Results(_quantize),
    "quantized_linear": Results(_rows_of("blocks")),
    "quantized_linear_backward": Results(_needed("x", "bias"), many=True),
    "repeat_kv": Results(_repeat_kv),
    "rms_norm": Results(_rms_norm, "residual"),
    "rope_append_kv": Results(_nothing, written=("key_cache", "value_cache")),
    "sample": Results(_sample),
    "transpose": Results(_transpose),
    "weighted_values": Results(_weighted_values),
}
