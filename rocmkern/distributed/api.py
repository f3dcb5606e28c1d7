"""`attention` over the processes of a group, each of which has a part of the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from rocmkern.calls.adapters.to_torch import as_given, as_torch
from rocmkern.calls.types import Array, ArrayLike, Causal, Layout, Window
from rocmkern.distributed.heads import heads_attention
from rocmkern.distributed.problem import Options, agreed_problem
from rocmkern.distributed.ranks import ranks_of
from rocmkern.distributed.ring import ring_attention
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.torch_tensors import torch_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AttentionOptions(TypedDict, total=False):
    """Options of `attention`, for type checkers."""

    group: Any
    split: Literal["contiguous", "zigzag"]
    mode: Literal["ring", "heads"]
    layout: Layout
    causal: Causal
    window: Window
    scale: float | None
    softcap: float | None
    sinks: ArrayLike | None
    cu_seqlens: ArrayLike | None
    timeout: float | None


@overload
def attention(
    q: Array, k: ArrayLike, v: ArrayLike, *, return_lse: Literal[False] = False, **options: Unpack[AttentionOptions]
) -> Array: ...
@overload
def attention(
    q: Array, k: ArrayLike, v: ArrayLike, *, return_lse: Literal[True], **options: Unpack[AttentionOptions]
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: Array, k: ArrayLike, v: ArrayLike, *, return_lse: bool, **options: Unpack[AttentionOptions]
) -> Array | tuple[Array, Array]: ...
def attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    group: Any = None,
    split: Literal["contiguous", "zigzag"] = "contiguous",
    mode: Literal["ring", "heads"] = "ring",
    layout: Layout = "bhsd",
    causal: Causal = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    return_lse: bool = False,
    timeout: float | None = None,
) -> Array | tuple[Array, Array]:
    """Attention of a sequence whose tokens are shared out among the processes of a group.

    The meaning is that of `rocmkern.flash_attention` of the whole sequence: every rank gets the rows of its queries.
    All ranks of the group call it, with the same options. What differs is found before anything is sent, and named.

    Tensors of PyTorch have gradients (see `rocmkern.distributed.gradients`). Where one rank asks for them all do, and
    all call backward: each gets the gradients of its own q, k and v, of the sum of all ranks' losses.

    Parameters
    ----------
    q : array, ``[B, Hq, S, D]``
        This rank's queries: a torch tensor, NumPy array or `DeviceTensor`; float32, float16 or bfloat16. In host memory
        with gloo, on the rank's own device with NCCL or RCCL. S may differ between ranks, and be 0.
    k, v : array, ``[B, Hkv, Sk, D]`` and ``[B, Hkv, Sk, Dv]``
        Its keys and values.
    group : torch.distributed.ProcessGroup, optional
        All processes by default.
    split : {"contiguous", "zigzag"}
        Which tokens a rank has: the ones behind those of the rank before; or, as `shard_sequence` gives them, chunks
        ``rank`` and ``2 * size - 1 - rank`` of twice as many chunks as ranks, so that under a causal mask all ranks
        have as much to do.
    mode : {"ring", "heads"}
        Keys go to the queries (see `rocmkern.distributed.ring`), or all tokens of some heads to each rank (see
        `rocmkern.distributed.heads`), for which Hq must be a multiple of the ranks, and Hkv a multiple or a divisor.
    layout : {"bhsd", "bshd"}
        Order of the axes. Where tokens are neighbours in memory ("bshd" with one batch element, or packed) nothing is
        copied to be sent.
    causal, window, scale, softcap
        As in `rocmkern.flash_attention`, of the whole sequence. Ranks out of the reach of a window are not visited.
    sinks : array, ``[Hq]``, optional
        One more logit for each head, the same on all ranks.
    cu_seqlens : array of int, ``[n + 1]``, optional
        Borders of packed sequences among the tokens of all ranks, the same on all ranks; they need not be borders of
        ranks. q, k and v are ``[tokens, H, D]`` then.
    return_lse : bool
        Also return the natural-log log-sum-exp of the scores, sink included.
    timeout : float, optional
        Seconds that this rank waits for another one; 60 by default.

    Returns
    -------
    out : array, ``[B, Hq, S, Dv]``
        Of the kind and the dtype of q. Partial results are float32, rounded once.
    lse : array, float32, ``[B, Hq, S]`` (packed: ``[Hq, tokens]``)
        Only with ``return_lse=True``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above, or differs between ranks; then on all of them.
    PeerError
        A rank has ended, hangs, or refused its arguments; ``error.ranks`` says which. Only in the last case the group
        can be used further.
    DeviceUnavailableError
        ``torch.distributed`` is not initialized.

    Examples
    --------
    With ``torchrun --nproc-per-node 4 program.py``, in ``program.py``::

        torch.distributed.init_process_group("gloo")
        q, k, v = (rocmkern.distributed.shard_sequence(x, split="zigzag") for x in (q, k, v))
        out = rocmkern.distributed.attention(q, k, v, split="zigzag", causal=True)
    """
    ranks, packed = ranks_of(group), cu_seqlens is not None
    q, k, v = _cast(q, k, v)
    gradients = _asks_for_gradients(q, k, v, sinks)
    options = Options(layout, split, mode, causal, window, scale, softcap, return_lse, gradients)

    def call(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        with ranks.call("attention", timeout):
            problem = agreed_problem(ranks, q, k, v, options, sinks, cu_seqlens)
            if mode == "heads":
                out, lse, kept = heads_attention(ranks, problem, return_lse or gradients, keep=gradients)
            else:
                out, lse, kept = *ring_attention(ranks, problem), []
            if packed:
                out, lse = out[0], None if lse is None else lse[0]
        return problem, out, lse, kept

    if gradients:
        # deferred: optional dependency
        from rocmkern.distributed.gradients import attended

        arrays = [_as_tensor(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("sinks", sinks))]
        out, lse = attended(ranks, timeout, call, *arrays)
    else:
        _, out, lse, _ = call(q, k, v, sinks)
    return (as_given(out, q), as_given(lse, q)) if return_lse else as_given(out, q)


def _cast(*arrays: Any) -> Sequence[Any]:
    """q, k and v in autocast's dtype, where that is on, as `rocmkern.flash_attention` has them."""
    torch = torch_of(arrays[0])
    device = arrays[0].device.type if torch is not None else ""
    if torch is None or not torch.is_autocast_enabled(device):
        return arrays
    # deferred: optional dependency
    from rocmkern.torch.autocast import is_cast

    return [x.to(torch.get_autocast_dtype(device)) if is_cast(x, device) else x for x in arrays]


def _as_tensor(name: str, x: Any) -> Any:
    """An array of another library as a tensor; what is wrong with one the check of all arguments says."""
    try:
        return x if x is None or torch_of(x) is not None else as_torch(name, x)
    except (ArgumentError, RuntimeError):
        return x


def _asks_for_gradients(*arrays: Any) -> bool:
    """Whether a tensor requires a gradient now; of a first array of another library there is none."""
    torch = torch_of(arrays[0])
    return torch is not None and torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arrays)
