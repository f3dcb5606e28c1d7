"""Models of Hugging Face's Transformers on these kernels.

`register` makes attention of ours one of Transformers' implementations, which a model chooses by its name.

Transformers and PyTorch are imported by the first call.
"""

from __future__ import annotations

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

__all__ = ["register"]

# What Transformers treats as another implementation's, wherever it stands in a name.
_TAKEN = ("flash", "flex_attention", "sdpa", "eager", "paged|", "/", ":")


def register(name: str = "rocmkern") -> None:
    """Make our attention one that ``attn_implementation=name`` chooses.

    Models then call `rocmkern.flash_attention` with what they say themselves: causal or not, window, soft cap, sinks,
    scale, packed sequences. Padding is a row of one byte a key; a matrix of queries and keys is made only for patterns
    that are none of causal, window, padding and packed. It may be called again.

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
