"""As much of PyTorch as peers use, in NumPy: what they ask of it can be tested where it is not installed.

A test puts `MODULES` into ``sys.modules``.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np


class Tensor(np.ndarray):
    """An array with the methods of a tensor."""

    device = "cpu"
    mT = property(lambda self: np.swapaxes(self, -1, -2))

    def to(self, place):
        return self if isinstance(place, str) else self.astype(place)

    def transpose(self, first, second):
        return np.swapaxes(self, first, second)

    def permute(self, axes):
        return np.ndarray.transpose(self, axes)

    def chunk(self, count, dim):
        return np.split(self, count, dim)

    def float(self):
        return self.astype(np.float32)

    def flatten(self, first=0, last=-1):
        last %= self.ndim
        return self.reshape(*self.shape[:first], -1, *self.shape[last + 1 :])

    def contiguous(self):
        return self.copy()

    def cos(self):
        return np.cos(self)

    def sin(self):
        return np.sin(self)

    def numpy(self):
        return np.asarray(self)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _softmax(x, dim):
    p = np.exp(x - x.max(axis=dim, keepdims=True))
    return p / p.sum(axis=dim, keepdims=True)


def _rms_norm(x, shape, weight=None, eps=None):
    assert tuple(shape) == x.shape[-1:]
    normed = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return normed if weight is None else normed * weight


def _layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    x = x - x.mean(axis=-1, keepdims=True)
    scaled = _rms_norm(x, shape, weight, eps)
    return scaled if bias is None else scaled + bias


def _linear(x, weight, bias=None):
    return x @ weight.mT if bias is None else x @ weight.mT + bias


def _cross_entropy(x, labels, reduction="mean", ignore_index=-100, label_smoothing=0.0):
    logs = np.asarray(x - x.max(axis=-1, keepdims=True), np.float64)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    counted = np.asarray(labels) != ignore_index
    picked = np.take_along_axis(logs, np.where(counted, labels, 0)[:, None], axis=-1)[:, 0]
    losses = np.where(counted, -(1 - label_smoothing) * picked - label_smoothing * logs.mean(axis=-1), 0.0)
    total = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counted.sum()}[reduction]
    return np.asarray(total, np.float32).view(Tensor)


def _attention(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    assert attn_mask is None or not is_causal
    groups = q.shape[1] // k.shape[1]
    assert groups == 1 or enable_gqa
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    visible = np.tri(q.shape[2], k.shape[2], dtype=bool) if is_causal else attn_mask
    if visible is not None:
        assert visible.dtype == bool
        scores = np.where(visible, scores, -np.inf)
    return (_softmax(scores, -1) @ v).view(Tensor)


MODULES = {name: ModuleType(name) for name in ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention")}
torch, nn, functional, attention = MODULES.values()
torch.nn, nn.functional, nn.attention = nn, functional, attention
torch.__version__, torch.version = "in NumPy", SimpleNamespace(hip=None)
torch.cuda = SimpleNamespace(is_available=lambda: False)
torch.bfloat16, torch.no_grad, torch.softmax = np.dtype(ml_dtypes.bfloat16), nullcontext, _softmax
torch.clamp = np.clip
torch.from_numpy = lambda array: array.view(Tensor)
torch.arange = lambda *given, device: np.arange(*given).view(Tensor)
torch.cat = lambda parts, dim: np.concatenate(parts, dim).view(Tensor)
functional.silu, functional.gelu = lambda x: x * _sigmoid(x), _gelu
functional.relu = lambda x: np.maximum(x, 0)
functional.rms_norm, functional.layer_norm, functional.linear = _rms_norm, _layer_norm, _linear
functional.cross_entropy = _cross_entropy
functional.embedding = lambda indices, table: table[indices]
functional.scaled_dot_product_attention = _attention
attention.SDPBackend, attention.sdpa_kernel = SimpleNamespace(MATH=0), lambda backend: nullcontext()
