"""Models of Hugging Face's Transformers on these kernels.

`register` makes attention of ours one of Transformers' implementations, which a model chooses by its name. `patch`
replaces the norms, the rotary embedding, the gated MLPs and, where asked, the linear layers of one model; `unpatch`
takes that back.

Transformers and PyTorch are imported by the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocmkern.calls.types import QuantizedFormat
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from rocmkern.transformers.patching import PatchReport as PatchReport

__all__ = ["patch", "register", "unpatch"]

# What Transformers treats as another implementation's, wherever it stands in a name.
_TAKEN = ("flash", "flex_attention", "sdpa", "eager", "paged|", "/", ":")


def register(name: str = "rocmkern") -> None:
    """Make our attention one that ``attn_implementation=name`` chooses.

    Models then call `rocmkern.flash_attention` with what they say themselves: causal or not, window, soft cap, sinks,
    scale, packed sequences. Padding on one side is a number for each row, other padding one byte a key; a matrix of
    queries and keys is made only for patterns that are none of causal, window, padding and packed. Models with an
    attention of their own, which does not ask for one by its name, are refused when they run. It may be called again.

    Parameters
    ----------
    name : str
        Of the implementation. Parts by which Transformers knows its own are refused: "flash", "sdpa" and their like.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The name is not one.
    ImportError
        Transformers is not installed, or its masks have another interface: it is older than 5.5.

    Examples
    --------
    >>> rocmkern.transformers.register()  # doctest: +SKIP
    >>> model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="rocmkern")  # doctest: +SKIP
    """
    if not isinstance(name, str):
        raise ArgumentTypeError("name", type(name).__name__, "a string")
    taken = [part for part in _TAKEN if part in name]
    if taken or not name:
        raise ArgumentError("name", repr(name), f"a name without {', '.join(map(repr, _TAKEN))}, Transformers' own")
    # deferred: optional dependency
    from transformers import AttentionInterface, AttentionMaskInterface

    # deferred: optional dependency
    from rocmkern.transformers.attention import attention_forward
    from rocmkern.transformers.masks import mask

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, mask)


def patch(
    model: Any, *, norms: bool = True, rotary: bool = True, mlp: bool = True, linear: QuantizedFormat | None = None
) -> PatchReport:
    """Run the parts of a model that these operations can do by these operations.

    Modules are found by what they are: a class of the right kind whose small copy computes the right formula. What is
    not known stays as it is, and the report says why; parameters, their names and the modules stay in any case. The
    attention is not among these parts, see `register`.

    Parameters
    ----------
    model : torch.nn.Module
        A model of Transformers, in ``eval()`` or in training: what is replaced has gradients, quantized weights apart.
    norms : bool
        RMS norms by `rms_norm`: ``weight`` and ``1 + weight``.
    rotary : bool
        Rotary embeddings by `rope`, with angles that are exact at every position. Those whose frequencies change with
        the length of the text stay.
    mlp : bool
        Gated MLPs by `mlp`. Mixtures of experts stay.
    linear : str, optional
        Format in which the weights of linear layers are quantized, as `quantize` names them. Layers that share their
        weight, that give the logits, or whose rows are no whole number of blocks stay, and so do those that are trained
        while others are frozen: adapters, put in before. MLPs of quantized layers are not replaced otherwise. The
        weights themselves move to host memory. They have no gradient: where they are not frozen, ``backward()`` is an
        `ArgumentError`.

    Returns
    -------
    PatchReport
        Which modules were replaced, and which were not for what reason.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The model is patched already, or has nothing to replace, or an argument is not as above. Nothing was changed.

    Examples
    --------
    >>> report = rocmkern.transformers.patch(model)  # doctest: +SKIP
    >>> print(report)  # doctest: +SKIP
    norms: 33 replaced
    rotary: 17 replaced
    mlp: 16 replaced
    """
    # deferred: optional dependency
    from rocmkern.transformers import patching

    return patching.patch(model, norms=norms, rotary=rotary, mlp=mlp, linear=linear)


def unpatch(model: Any) -> None:
    """Take back what `patch` did: the same modules, weights and results as before.

    Parameters
    ----------
    model : torch.nn.Module
        One that is patched, or a deep or a loaded copy of one. Weights of quantized layers move to where their blocks
        are.

    Raises
    ------
    ArgumentError
        The model is not patched.
    """
    # deferred: optional dependency
    from rocmkern.transformers import patching

    patching.unpatch(model)
