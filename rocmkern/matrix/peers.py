"""Other implementations that benchmark rows are compared with, on the same inputs.

Each is imported only when a row that names it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern import reference
from rocmkern.matrix.registry import Call, Peer, PeerUnavailable, resolve
from rocmkern.targets import GPU_TARGETS


def _torch() -> Any:
    # OpenMP workers that wait for more work spin by default, and that CPU time would count against whatever runs next.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        # deferred: optional dependency
        import torch
    except ImportError:
        raise PeerUnavailable("torch is not installed (pip install torch)") from None
    return torch


def torch_on(target: str) -> tuple[Any, Callable[[Any], Any]]:
    """PyTorch, and a function that brings an array (or None) to the device of a target."""
    torch, device = _torch(), "cpu"
    if target in GPU_TARGETS:
        if not torch.cuda.is_available() or (target == "hip") != bool(torch.version.hip):
            raise PeerUnavailable(f"this torch ({torch.__version__}) cannot use the device of the target {target}")
        device = "cuda"

    def bring(array: np.ndarray | None) -> Any:
        if array is None:
            return None
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(np.array(array)).to(device)

    return torch, bring


def _prepare_sdpa(call: Call, case: Any, target: str) -> Callable[[], Any]:
    """`torch.nn.functional.scaled_dot_product_attention`, with the flags that reach its fast paths."""
    torch, bring = torch_on(target)
    features, dims = case.features, case.dims
    for name in ("softcap", "alibi", "sinks", "bias", "mask", "lengths"):
        if features.get(name):
            raise PeerUnavailable(f"scaled_dot_product_attention is not asked for {name}")
    q, k, v = (bring(call.arguments[name]) for name in "qkv")
    if features["layout"] == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options: dict[str, Any] = {}
    if features["scale"] is not None:
        options["scale"] = features["scale"]
    if dims["kv_heads"] != dims["heads"]:
        options["enable_gqa"] = True
    square = dims["seq_q"] == dims["seq_k"]
    if features["window"] is None and (square or features["causal"] == "top_left"):
        # is_causal aligns top-left, which for square shapes is the same.
        options["is_causal"] = bool(features["causal"])
    elif features["window"] is not None or (features["causal"] and dims["seq_q"] > 1):
        visible = reference.causal_mask(
            dims["seq_q"], dims["seq_k"], causal=features["causal"], window=call.options.get("window")
        )
        options["attn_mask"] = bring(visible == 0)
    attention = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        with torch.no_grad():
            return attention(q, k, v, **options)

    return run


def _prepare_softmax(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    x = bring(call.arguments["x"])
    return lambda: torch.softmax(x, dim=-1)


def activation_of(torch: Any, name: str | None) -> Callable[[Any], Any]:
    """PyTorch's function for an activation."""
    functional = torch.nn.functional
    return {
        None: lambda x: x,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "relu": functional.relu,
    }[name]


def products(prepare: Callable[..., Callable[[], Any]]) -> Callable[..., Callable[[], Any]]:
    """The peer of an operation on matrices: ``prepare(functional, activation, tensors, options)`` makes the call."""

    def prepared(call: Call, case: Any, target: str) -> Callable[[], Any]:
        torch, bring = torch_on(target)
        if len({x.dtype for x in call.arrays.values() if x is not None}) > 1:
            raise PeerUnavailable("PyTorch's products want all arrays in one dtype")
        tensors = {name: bring(x) for name, x in call.arrays.items() if x is not None}
        default = "silu" if case.operation.name == "mlp" else None
        activation = activation_of(torch, call.options.get("activation", default))
        work = prepare(torch.nn.functional, activation, tensors, call.options)

        def run() -> Any:
            with torch.no_grad():
                return work()

        return run

    return prepared


def gradients(names: tuple[str, ...], forward: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """The peer of a gradient: PyTorch's own for the arrays of these names, of a graph that is made once.

    ``forward(torch, tensors, options)`` is the result whose gradient is ``dout``.
    """

    def prepared(call: Call, case: Any, target: str) -> Callable[[], Any]:
        torch, bring = torch_on(target)
        if not hasattr(torch, "autograd"):
            raise PeerUnavailable("this torch has no gradients")
        tensors = {name: bring(x) for name, x in call.arrays.items()}
        inputs = [tensors[name].requires_grad_() for name in names if tensors.get(name) is not None]
        with torch.enable_grad():
            result = forward(torch, tensors, call.options)
        return lambda: torch.autograd.grad(result, inputs, tensors["dout"], retain_graph=True)[0]

    return prepared


def _prepare_backend(name: str) -> Callable[..., Callable[[], Any]]:
    """`scaled_dot_product_attention` by one of its backends and no other."""

    def prepared(call: Call, case: Any, target: str) -> Callable[[], Any]:
        torch = _torch()
        attention = torch.nn.attention
        backend = getattr(attention.SDPBackend, name, None)
        if backend is None:
            raise PeerUnavailable(f"this torch ({torch.__version__}) has no SDPBackend.{name}")
        work = _prepare_sdpa(call, case, target)

        def run() -> Any:
            with attention.sdpa_kernel(backend):
                return work()

        try:
            run()
        except RuntimeError as e:
            raise PeerUnavailable(f"SDPBackend.{name} does not take this row: {str(e).splitlines()[0]}") from e
        return run

    return prepared


def _prepare_compiled(peer: Peer) -> Callable[..., Callable[[], Any]]:
    """What PyTorch's compiler makes of a peer of ours: kernels in Triton, on a GPU."""

    def prepared(call: Call, case: Any, target: str) -> Callable[[], Any]:
        torch = _torch()
        if target not in GPU_TARGETS:
            raise PeerUnavailable("Triton compiles for GPUs")
        try:
            # deferred: optional dependency
            import triton  # noqa: F401
        except ImportError:
            raise PeerUnavailable("triton is not installed") from None
        run = torch.compile(peer.prepare(call, case, target), dynamic=False)
        run()
        return run

    return prepared


def _prepare_numpy(call: Call, case: Any, target: str) -> Callable[[], Any]:
    """The straightforward algorithm in the dtype of the row: the baseline of its tolerance."""
    if target in GPU_TARGETS:
        raise PeerUnavailable("NumPy computes on the host")
    if case.operation.baseline is None:
        raise PeerUnavailable(f"{case.operation.name} has no baseline")
    work = resolve(case.operation.baseline)
    turned = case.features.get("layout") == "bshd"

    def run() -> Any:
        result = work(**call.arguments)
        first = result[0] if isinstance(result, tuple) else result
        return first.swapaxes(1, 2) if turned else first

    return run


NUMPY = Peer("numpy", _prepare_numpy)
TORCH_SDPA = Peer("torch", _prepare_sdpa)
SDPA_BACKENDS = tuple(
    Peer(f"torch_{name}", _prepare_backend(backend))
    for name, backend in {
        "flash": "FLASH_ATTENTION",
        "cudnn": "CUDNN_ATTENTION",
        "efficient": "EFFICIENT_ATTENTION",
        "math": "MATH",
    }.items()
)
TORCH_SOFTMAX = Peer("torch", _prepare_softmax)


def with_triton(peer: Peer) -> tuple[Peer, ...]:
    """A peer in PyTorch, the same compiled to Triton, and NumPy."""
    return peer, Peer("triton", _prepare_compiled(peer)), NUMPY
