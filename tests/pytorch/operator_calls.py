"""Small calls of every public operation, on tensors: ``(name, arguments by name)``, drawn with a seed.

An operation of which there is none is found by a test.
"""

from __future__ import annotations

from typing import Any

import torch

import rocmkern
from rocmkern.torch.formulas import FORMULAS, Formula
from rocmkern.torch.operators import OPERATORS
from rocmkern.torch.signatures import encoded

CPU_SEED = 0


def _int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def calls() -> list[tuple[str, dict[str, Any]]]:
    """The calls, with new tensors each time and the same numbers."""
    generator = torch.Generator().manual_seed(CPU_SEED)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8)
    x, weight = normal(2, 3, 8), normal(8)
    blocks = rocmkern.quantize(normal(4, 32), "q8_0")
    cache = normal(3, 4, 2, 8)
    labels = torch.tensor([[1, 0, 4], [-100, 2, 2]])
    lse = [normal(2, 4, 3), normal(2, 4, 3)]
    pages = {"block_table": torch.tensor([[0, 2], [1, 0]], dtype=torch.int32), "context_lens": _int32(6, 2)}
    packed = {"cu_seqlens_q": _int32(0, 2, 3), "cu_seqlens_k": _int32(0, 4, 5)}
    return [
        ("add_residual", {"x": x, "residual": normal(2, 3, 8)}),
        ("apply_mask", {"scores": x, "mask": normal(3, 8) > 0}),
        ("causal_mask", {"sq": 3, "sk": 5, "window": (1, None), "out": torch.empty(3, 5)}),
        ("clamp", {"x": x, "min": -0.5}),
        ("decode_attention", {"q": q, "k": k, "v": v, "num_splits": 2}),
        ("decode_attention", {"q": q, "k": k, "v": v, "return_lse": True}),
        ("dequantize", {"blocks": blocks, "format": "q8_0", "dtype": torch.bfloat16}),
        ("dequantize_rms_norm", {"blocks": blocks, "weight": normal(32), "format": "q8_0"}),
        ("embedding", {"table": normal(5, 8), "indices": torch.tensor([[4, 0, 1]])}),
        ("embedding_backward", {"dout": normal(1, 3, 8), "table": normal(5, 8), "indices": torch.tensor([[4, 0, 4]])}),
        ("flash_attention", {"q": q, "k": k, "v": v, "causal": True, "window": (2, None), "softcap": 3.0}),
        (
            "flash_attention",
            {
                "q": q.mT.contiguous().mT, "k": k, "v": v, "causal": "top_left", "bias": normal(5), "sinks": normal(4),
                "alibi_slopes": normal(4), "mask": normal(2, 1, 1, 5) > -1, "scale": 0.5, "return_lse": True,
            },
        ),
        ("flash_attention", {"q": normal(2, 3, 4, 8), "k": cache[:2], "v": cache[:2], "layout": "bshd"}),
        ("flash_attention", {"q": normal(3, 4, 8), "k": normal(5, 2, 8), "v": normal(5, 2, 8), **packed}),
        ("geglu", {"gate": x, "approximate": "tanh"}),
        (
            "flash_attention_backward",
            {"dout": q, "q": q, "k": k, "v": v, "o": q + 1, "lse": lse[0], "window": (2, None), "dlse": lse[1]},
        ),
        (
            "flash_attention_backward",
            {
                "dout": q, "q": q.mT.contiguous().mT, "k": k, "v": v, "o": q + 1, "lse": lse[0], "bias": normal(5),
                "sinks": normal(4), "return_dbias": True, "return_dsinks": True,
            },
        ),
        ("geglu_backward", {"dout": normal(2, 3, 4), "gate": x, "approximate": "tanh"}),
        ("layer_norm", {"x": x, "weight": weight, "bias": normal(8)}),
        ("layer_norm_backward", {"dout": normal(2, 3, 8), "x": x, "weight": weight, "bias": normal(8)}),
        ("layer_norm_backward", {"dout": normal(2, 3, 8), "x": x}),
        ("linear", {"x": x, "weight": normal(5, 8), "bias": normal(5), "activation": "relu"}),
        (
            "linear_backward",
            {
                "dout": normal(2, 3, 5), "x": x, "weight": normal(5, 8), "bias": normal(5), "activation": "gelu",
                "needs": ("weight", "bias"),
            },
        ),
        ("linear_backward", {"dout": normal(2, 3, 5), "x": x, "weight": normal(5, 8), "needs": ("x",)}),
        (
            "linear_cross_entropy",
            {"x": x, "weight": normal(5, 8), "target": labels, "bias": normal(5), "label_smoothing": 0.1},
        ),
        ("linear_cross_entropy", {"x": x, "weight": normal(5, 8), "target": labels, "reduction": "none"}),
        (
            "linear_cross_entropy_backward",
            {
                "dloss": torch.tensor(0.5), "x": x, "weight": normal(5, 8), "target": labels, "lse": normal(2, 3),
                "softcap": 3.0, "z_loss": 0.1, "needs": ("weight",),
            },
        ),
        ("matmul", {"a": normal(2, 1, 3, 8), "b": normal(4, 5, 8), "transpose_b": True}),
        ("matmul", {"a": weight, "b": weight}),
        ("matmul_backward", {"dout": normal(2, 4, 3, 5), "a": normal(2, 1, 3, 8), "b": normal(4, 8, 5)}),
        ("merge_attention", {"o1": q, "lse1": lse[0], "o2": q + 1, "lse2": lse[1]}),
        ("mlp", {"x": x, "w_gate": normal(6, 8), "w_up": normal(6, 8), "w_down": normal(5, 6)}),
        ("mlp", {"x": x, "w_gate": None, "w_up": normal(6, 8), "w_down": normal(5, 6), "activation": None}),
        (
            "mlp_backward",
            {
                "dout": normal(2, 3, 5), "x": x, "w_gate": normal(6, 8), "w_up": normal(6, 8), "w_down": normal(5, 6),
                "b_up": normal(6), "needs": ("x", "w_up", "b_up"),
            },
        ),
        ("paged_attention", {"q": normal(2, 4, 8), "key_cache": cache, "value_cache": cache, **pages}),
        (
            "paged_attention",
            {
                "q": normal(3, 4, 8), "key_cache": cache, "value_cache": cache, **pages,
                "cu_seqlens_q": _int32(0, 2, 3), "return_lse": True,
            },
        ),
        ("qk_scores", {"q": q, "k": k}),
        ("quantize", {"x": normal(2, 32), "format": "q4_0"}),
        ("quantized_linear", {"x": normal(3, 32), "blocks": blocks, "format": "q8_0"}),
        (
            "quantized_linear_backward",
            {"dout": normal(3, 4), "x": normal(3, 32), "blocks": blocks, "format": "q8_0", "activation": "silu"},
        ),
        ("repeat_kv", {"x": k, "n_rep": 2}),
        ("rms_norm", {"x": x, "weight": weight}),
        ("rms_norm", {"x": x, "weight": weight, "residual": normal(2, 3, 8), "eps": 1e-5}),
        ("rms_norm_backward", {"dout": normal(2, 3, 8), "x": x, "weight": weight, "dresidual": normal(2, 3, 8)}),
        ("rope", {"x": x[:, None].transpose(1, 2), "positions": torch.arange(3)}),
        (
            "rope",
            {
                "x": q, "positions": torch.arange(3), "layout": "hsd", "rotary_dim": 4, "freq_factors": (1.0, 2.0),
                "scaling": rocmkern.YarnScaling(4.0, 64),
            },
        ),
        (
            "rope_backward",
            {
                "dout": q, "positions": torch.arange(3), "layout": "hsd", "rotary_dim": 4, "freq_factors": (1.0, 2.0),
                "scaling": rocmkern.YarnScaling(4.0, 64),
            },
        ),
        (
            "rope_append_kv",
            {
                "k": normal(3, 2, 8), "v": normal(3, 2, 8), "positions": torch.arange(3), "key_cache": cache.clone(),
                "value_cache": cache.clone(), "slots": _int32(7, -1, 2),
                "scaling": {"rope_type": "linear", "factor": 2},
            },
        ),
        ("sample", {"logits": normal(3, 8), "temperature": 0.7, "top_k": 4, "seed": torch.arange(3), "offset": 5}),
        ("scale", {"x": x, "factor": 2.0}),
        ("softmax", {"x": x}),
        ("softmax_backward", {"dout": x, "y": normal(2, 3, 8), "scale": 0.5}),
        ("swiglu", {"gate": x, "up": normal(2, 3, 8), "order": "up_gate"}),
        ("swiglu_backward", {"dout": normal(2, 3, 8), "gate": x, "up": normal(2, 3, 8), "order": "up_gate"}),
        ("transpose", {"x": x, "axes": (1, 2, 0)}),
        ("weighted_values", {"p": normal(2, 4, 3, 5), "v": v, "layout": "bhsd"}),
    ]  # fmt: skip


CALLS = calls()
IDS = [f"{i}-{name}" for i, (name, _) in enumerate(CALLS)]


def overload_of(name: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The overload that a call comes to, and its values."""
    operator = OPERATORS[name]
    given = dict(given)
    outs = given.pop("out", None)
    second = given.pop("return_lse", False) or (operator.results.second == "residual" and "residual" in given)
    overload = operator.overloads[second, outs is not None]
    return overload, encoded(operator.parameters, given) | ({} if outs is None else {"out": outs})


def formula_of(name: str, given: dict[str, Any]) -> Formula | None:
    """The gradient of a call, or None."""
    return FORMULAS.get(overload_of(name, given)[0].name)


def with_gradients(name: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The call with tensors that ask for gradients, and these by their names."""
    of = formula_of(name, given).of
    asked = {
        n: x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        for n, x in given.items()
        if n in of and isinstance(x, torch.Tensor) and x.is_floating_point()
    }
    return {**given, **asked}, asked


DIFFERENTIABLE = [call for call in CALLS if formula_of(*call) is not None]
DIFFERENTIABLE_IDS = [i for i, call in zip(IDS, CALLS, strict=True) if formula_of(*call) is not None]


def results_of(result: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that a call gives."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
