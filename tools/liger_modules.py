"""What Liger-Kernel's tests import from it, computed by `rocmkern`: layers, functions of autograd, their short names.

Each has the name, the arguments and the results that the tests ask for; the work is done by the operations of this
library, and gradients are those of its operators. What an option means is computed:

* ``offset`` is a weight offset. A casting mode says where a norm is rounded to halves; ours is rounded once, at the
  end, which is nearer to the numbers than each of them. Norms without weights have weights of 1.
* ``in_place`` lets a gradient overwrite another, ``row_mode`` and ``accum_dtype`` choose how a kernel works: ours
  need none of them.
* Tables of a rotation are not read but have to be those of the positions 0, 1, ... with base 10000, which is checked.
* Token scaling multiplies each loss by the probability of its target, of which no gradient is taken. The z-loss by
  itself is computed from log-sum-exps.

Classes whose ``__init__`` would be that of a layer of Transformers take the configuration that such a layer takes.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

import rocmkern
import rocmkern.torch

_BASE = 10000.0
Tensor = torch.Tensor


class _Applied:
    """What stands for a `torch.autograd.Function`: its ``apply``."""

    def __init__(self, function: Callable[..., Any]):
        self.apply = function


# Norms


def rms_norm(
    X: Tensor,
    W: Tensor | None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
    row_mode: Any = None,
) -> Tensor:
    """`rocmkern.rms_norm`."""
    weight, offset = (X.new_ones(X.shape[-1]), 0.0) if W is None else (W, offset)
    return rocmkern.rms_norm(X, weight, eps, weight_offset=offset)


def fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> tuple[Tensor, Tensor]:
    """`rocmkern.rms_norm` of a sum, and the sum."""
    return rocmkern.rms_norm(X, W, eps, residual=R, weight_offset=offset)


def layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
    """`rocmkern.layer_norm`."""
    return rocmkern.layer_norm(X, W, B, eps)


class RMSNorm(nn.Module):
    """A layer of `rms_norm`."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = True,
        elementwise_affine: bool = True,
    ):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.ones(hidden_size)) if elementwise_affine else None)
        self.options = (eps, offset, casting_mode, in_place)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, *self.options)


class FusedAddRMSNorm(RMSNorm):
    """A layer of `fused_add_rms_norm`."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return fused_add_rms_norm(x, residual, self.weight, *self.options)


class LayerNorm(nn.Module):
    """A layer of `layer_norm`."""

    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(hidden_size)), nn.Parameter(torch.zeros(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


# Rotation, softmax, gates


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """`rocmkern.rope` of queries and keys ``[B, H, S, D]``, for tables ``[1 or B, S, D]`` or ``[S, D]``."""
    length, dim = cos.shape[-2:]
    wanted = exact_tables(torch.arange(length, device=cos.device), dim)
    if not all(
        torch.allclose(given.double(), table, 0, 2.0**-8) for given, table in zip((cos, sin), wanted, strict=True)
    ):
        raise ValueError("cos, sin: got other tables; allowed: those of positions 0, 1, ... with base 10000")
    positions = torch.arange(length, dtype=torch.int32, device=q.device)
    turned = [rocmkern.rope(x, positions, layout="hsd", base=_BASE) for x in (q, k)]
    return turned[0], turned[1]


def exact_tables(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine ``[..., S, dim]`` of angles that are not rounded to float32."""
    frequencies = _BASE ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim)
    angles = (positions.double()[..., None] * frequencies).repeat(*[1] * positions.dim(), 2)
    return angles.cos(), angles.sin()


def softmax(x: Tensor) -> Tensor:
    """`rocmkern.softmax`."""
    return rocmkern.softmax(x)


class Softmax(nn.Module):
    """A layer of `softmax`."""

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x)


def swiglu(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    """`rocmkern.swiglu` between two factors."""
    gate = a if gate_multiplier == 1.0 else rocmkern.scale(a, gate_multiplier)
    out = rocmkern.swiglu(gate, b)
    return out if down_multiplier == 1.0 else rocmkern.scale(out, down_multiplier)


def geglu(a: Tensor, b: Tensor) -> Tensor:
    """`rocmkern.geglu` with the approximation by tanh."""
    return rocmkern.geglu(a, b, approximate="tanh")


# Layers of models


class MLP(nn.Module):
    """`rocmkern.mlp` with the weights of three linear layers."""

    activation: Literal["silu", "gelu_tanh"] = "silu"

    def __init__(self, config: Any, intermediate_size: int | None = None):
        super().__init__()
        self.hidden_size = config.hidden_size
        self.intermediate_size = intermediate_size or config.intermediate_size
        self.gate_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return rocmkern.mlp(x, *weights, activation=self.activation)


class GEGLUMLP(MLP):
    """The same with GELU."""

    activation = "gelu_tanh"


class Gemma4MLP(GEGLUMLP):
    """Twice as wide in the last layers, those that share keys and values, where a configuration says so."""

    def __init__(self, config: Any, layer_idx: int | None = None):
        shared = config.num_kv_shared_layers if config.use_double_wide_mlp and layer_idx is not None else 0
        wide = shared > 0 and (layer_idx or 0) >= config.num_hidden_layers - shared
        super().__init__(config, config.intermediate_size * (2 if wide else 1))


class Phi3MLP(nn.Module):
    """`rocmkern.mlp` with gate and up in one linear layer."""

    def __init__(self, config: Any):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return rocmkern.mlp(x, *self.gate_up_proj.weight.chunk(2), self.down_proj.weight)


class FalconH1MLP(MLP):
    """`rocmkern.linear` and `swiglu` with its factors."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.multipliers = tuple(map(float, config.mlp_multipliers))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (rocmkern.linear(x, layer.weight) for layer in (self.gate_proj, self.up_proj))
        return rocmkern.linear(swiglu(gate, up, *self.multipliers), self.down_proj.weight)


class Experts(nn.Module):
    """`rocmkern.mlp` for each expert's rows."""

    def __init__(self, config: Any):
        super().__init__()
        experts, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            rows, places = torch.where(chosen == expert)
            if len(rows):
                found = rocmkern.mlp(x[rows], *gate_up.chunk(2), down)
                out = out.index_add(0, rows, found * weights[rows, places, None])
        return out


# Cross-entropy


@dataclass
class CrossEntropyOutput:
    """A loss with what was asked for beside it."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


def applied_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: Any = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> tuple[Tensor, Tensor | None, None, None]:
    """`rocmkern.linear_cross_entropy`: loss and z-loss."""
    if ce_weight is not None or return_token_accuracy or return_predicted_tokens:
        raise NotImplementedError("class weights and predictions")
    options: dict[str, Any] = dict(bias=bias, ignore_index=ignore_index, softcap=softcap)
    options |= dict(label_smoothing=label_smoothing, z_loss=lse_square_scale)
    kind: Literal["mean", "sum", "none"] = "none" if use_token_scaling else reduction
    loss, lse = rocmkern.linear_cross_entropy(x, weight, target, reduction=kind, **options)
    counts = target != ignore_index
    if use_token_scaling:
        loss = _reduced(loss * torch.exp(-loss.detach()), counts, reduction)
    z_loss = _reduced(lse_square_scale * lse.detach() ** 2 * counts, counts, reduction) if return_z_loss else None
    return loss, z_loss, None, None


def _reduced(rows: Tensor, counts: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return rows
    return rows.sum() / counts.sum() if reduction == "mean" else rows.sum()


def fused_linear_cross_entropy(input: Tensor, weight: Tensor, target: Tensor, bias: Any = None, **options: Any) -> Any:
    """The loss, or a `CrossEntropyOutput` where more is asked for."""
    found = applied_cross_entropy(input, weight, target, bias, **options)
    more = any(value for name, value in options.items() if name.startswith("return_"))
    return CrossEntropyOutput(*found) if more else found[0]


class FusedLinearCrossEntropyLoss(nn.Module):
    """A layer of `fused_linear_cross_entropy`."""

    def __init__(self, **options: Any):
        super().__init__()
        self.options = options

    def forward(self, weight: Tensor, x: Tensor, target: Tensor, bias: Tensor | None = None) -> Any:
        return fused_linear_cross_entropy(x, weight, target, bias, **self.options)


# The modules


def stand_ins(device: str) -> dict[str, types.ModuleType]:
    """``liger_kernel`` and its modules as the tests import them, for tensors on a device.

    Names that a file imports and no test that is run uses are None.
    """
    layers: dict[str, dict[str, Any]] = {
        "fused_add_rms_norm": {"LigerFusedAddRMSNorm": FusedAddRMSNorm},
        "fused_linear_cross_entropy": {"LigerFusedLinearCrossEntropyLoss": FusedLinearCrossEntropyLoss},
        "geglu": {"LigerGEGLUMLP": GEGLUMLP, "LigerGEGLUMLPForGemma4": Gemma4MLP},
        "layer_norm": {"LigerLayerNorm": LayerNorm},
        "rms_norm": {"LigerRMSNorm": RMSNorm},
        "rope": {"liger_rotary_pos_emb": rope},
        "softmax": {"LigerSoftmax": Softmax},
        "swiglu": {
            "LigerBlockSparseTop2MLP": None,
            "LigerExperts": Experts,
            "LigerFalconH1SwiGLUMLP": FalconH1MLP,
            "LigerPhi3SwiGLUMLP": Phi3MLP,
            "LigerSwiGLUMLP": MLP,
        },
        "cross_entropy": {"LigerCrossEntropyLoss": None},
        "functional": {
            "CrossEntropyOutput": CrossEntropyOutput,
            "liger_cross_entropy": None,
            "liger_fused_add_rms_norm": fused_add_rms_norm,
            "liger_fused_linear_cross_entropy": fused_linear_cross_entropy,
            "liger_geglu": geglu,
            "liger_layer_norm": layer_norm,
            "liger_rms_norm": rms_norm,
            "liger_rope": rope,
            "liger_softmax": softmax,
            "liger_swiglu": swiglu,
        },
    }
    contents: dict[str, dict[str, Any]] = {
        "liger_kernel": {},
        "liger_kernel.ops": {
            "LigerCrossEntropyFunction": None,
            "LigerFusedAddRMSNormFunction": _Applied(fused_add_rms_norm),
            "LigerFusedLinearCrossEntropyFunction": _Applied(applied_cross_entropy),
            "LigerGELUMulFunction": _Applied(geglu),
            "LigerLayerNormFunction": _Applied(layer_norm),
            "LigerRMSNormFunction": _Applied(rms_norm),
            "LigerRopeFunction": _Applied(rope),
            "LigerSiLUMulFunction": _Applied(swiglu),
        },
        "liger_kernel.ops.cross_entropy": {"liger_cross_entropy_kernel": None},
        "liger_kernel.ops.swiglu": {},
        "liger_kernel.ops.utils": {"is_hip": lambda: torch.version.hip is not None},
        "liger_kernel.transformers": {},
        **{f"liger_kernel.transformers.{name}": names for name, names in layers.items()},
        "liger_kernel.utils": {
            "infer_comm_backend": None,
            "infer_device": lambda: device,
            "is_npu_available": lambda: False,
            "transformers_version_dispatch": _by_version,
        },
    }
    modules = {name: types.ModuleType(name) for name in contents}
    for name, names in contents.items():
        vars(modules[name]).update(names, __path__=[])
        package, _, last = name.rpartition(".")
        if package:
            setattr(modules[package], last, modules[name])
    return modules


def _by_version(version: str, before: Any, after: Any, *, before_kwargs: Any, after_kwargs: Any) -> Any:
    """The module that Transformers before or from a version makes, on the device that is among its arguments."""
    # deferred: start-up
    import transformers

    numbers = [tuple(int(part) for part in v.split(".")[:2]) for v in (transformers.__version__, version)]
    made, kwargs = (before, before_kwargs) if numbers[0] < numbers[1] else (after, after_kwargs)
    device = kwargs.pop("device")  # from 5.24 on it is no argument
    return made(**kwargs).to(device)


def make_tables_exact() -> None:
    """Let Transformers' tables for Llama be those of exact angles.

    Angles of float32 are 2e-4 beside the exact ones at position 8000; a kernel that does not read the tables is not.
    """
    # deferred: start-up
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        tables = exact_tables(position_ids, 2 * len(self.inv_freq))
        return tables[0].to(x.dtype), tables[1].to(x.dtype)

    LlamaRotaryEmbedding.forward = forward
