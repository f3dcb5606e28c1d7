"""What other libraries call our keywords: a call in their words is answered with ours.

Nothing is translated in silence, as the same word may mean something else (a mask of `torch.nn` that is True hides a
key). The answer is an `ArgumentTypeError` that names the keyword as it was written and what to write instead, with the
value. Nobody pays for it but a call that fails: Python itself finds the keyword, and only then is it looked up here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rocmkern.calls import arguments as _arguments
from rocmkern.calls.view import describe
from rocmkern.runtime.errors import ArgumentTypeError, RocmkernError

#: From the keyword and its value to what to write. The first of its candidates whose parameter the operation has
#: counts; None stands for an operation that needs no such parameter.
Candidate = tuple[str | None, Callable[[str, Any], str]]


def explain(operation: Callable[..., Any], keywords: Mapping[str, Any], error: TypeError) -> None:
    """Raise what a call should have said, if it failed for a keyword that the operation does not have.

    Parameters
    ----------
    operation : callable
    keywords : mapping
        Keyword arguments of the call.
    error : TypeError
        What it raised.
    """
    if isinstance(error, RocmkernError):
        return
    parameters = inspect.signature(operation).parameters
    for name, value in keywords.items():
        if name not in parameters:
            shown = _shown(name, value)
            given = describe(value) if shown == name else shown
            words = f"{given}, but {operation.__name__} has no parameter of this name"
            raise ArgumentTypeError(name, words, _instead(name, value, list(parameters))) from None


def _instead(name: str, value: Any, parameters: list[str]) -> str:
    for ours, words in _SPELLINGS.get(name, ()):
        if ours is None or ours in parameters:
            return words(name, value)
    near = difflib.get_close_matches(name, parameters, 1)
    if near:
        return f"{near[0]}={_shown(name, value)}"
    return ", ".join(parameters)


def _shown(name: str, value: Any) -> str:
    """A value as one may write it: arrays by the name of the argument."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    if plain or (isinstance(value, (tuple, list)) and all(x is None or isinstance(x, (int, float)) for x in value)):
        text = repr(value)
        return text if len(text) <= 60 else name
    return name


def _is_true(value: Any) -> bool:
    return bool(value) if isinstance(value, (bool, int, float)) else value is not None


# What to write, of the keyword and its value.


def _as(ours: str) -> Candidate:
    return ours, lambda name, value: f"{ours}={_shown(name, value)}"


def _without(reason: str) -> Candidate:
    return None, lambda name, value: f"the same call without it: {reason}"


def _window(name: str, value: Any) -> str:
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(side, int) for side in value):
        left, right = (None if side < 0 else side for side in value)
        return f"window=({left}, {right}): None is no limit" if (left, right) != (None, None) else "window=None"
    return "window=(left, right), the keys on either side of the diagonal; None is no limit"


def _sliding(name: str, value: Any) -> str:
    left = value - 1 if isinstance(value, int) and value > 0 else f"{name} - 1"
    return f"window=({left}, 0): a row sees its own key and those {left} before it"


def _attention_mask(name: str, value: Any) -> str:
    kind = _arguments.kind_of_elements(value)
    if kind == "float":
        return f"bias={name} (mask={name} of apply_mask), which is added to the scores"
    mask = name if kind in ("bool", None) else _arguments.as_bool(name, value)
    keys = "[:, None, None, :]" if len(getattr(value, "shape", ())) == 2 and name == "attention_mask" else ""
    return f"mask={mask}{keys}, which is True where a key is visible; what is added to the scores is bias="


def _padding_mask(name: str, value: Any) -> str:
    mask = name if _arguments.kind_of_elements(value) in ("bool", None) else _arguments.as_bool(name, value)
    return f"mask=~{mask}[:, None, None, :], where True is padding (torch.nn), without ~ where it is a visible key"


def _no_dropout(name: str, value: Any) -> str:
    return f"the same call without it: nothing is dropped, as with {name}=0"


def _layout(name: str, value: Any) -> str:
    ours = {"nhd": "bshd", "bshd": "bshd", "hnd": "bhsd", "bhsd": "bhsd", "sbhd": None}.get(str(value).lower())
    return f'layout="{ours}"' if ours else 'layout="bhsd" ([B, H, S, D]) or layout="bshd" ([B, S, H, D])'


def _axis(name: str, value: Any) -> str:
    if isinstance(value, int) and value == -1:
        return "the same call without it: it is always the last axis"
    return f"the last axis, so a view: x.swapaxes({_shown(name, value)}, -1), and the same of the result"


def _interleaved(name: str, value: Any) -> str:
    return f'variant="{"interleaved" if _is_true(value) else "half"}"'


def _neox(name: str, value: Any) -> str:
    return f'variant="{"half" if _is_true(value) else "interleaved"}"'


def _greedy(name: str, value: Any) -> str:
    return "the same call without it" if _is_true(value) else "temperature=0.0, the largest logit"


_NO_GROUPS = _without("query heads share key-value heads wherever there are fewer of those")
_NO_DROPOUT: Candidate = (None, _no_dropout)
_FORWARD_ONLY = _without("there is no backward pass that it could be about")
_LIKE_THE_INPUT = _without("a result has the dtype of the first input, sums are float32")

_SPELLINGS: dict[str, tuple[Candidate, ...]] = {
    # Arrays
    **dict.fromkeys(("query", "queries", "q_proj"), (_as("q"),)),
    **dict.fromkeys(("key", "keys"), (_as("k"),)),
    **dict.fromkeys(("value", "values"), (_as("v"),)),
    "input": (_as("x"), ("indices", lambda name, value: "indices=, the second argument"), _as("logits"), _as("a")),
    **dict.fromkeys(("hidden_states", "inputs", "tensor"), (_as("x"), _as("logits"), _as("scores"))),
    "other": (_as("b"), _as("residual")),
    **dict.fromkeys(("input_ids", "ids", "tokens"), (_as("indices"),)),
    "weight": (("table", lambda name, value: "table=, the first argument"), _as("w_up")),
    **dict.fromkeys(("gamma", "weights"), (_as("weight"),)),
    "beta": (_as("bias"),),
    **dict.fromkeys(("k_cache", "kcache"), (_as("key_cache"),)),
    **dict.fromkeys(("v_cache", "vcache"), (_as("value_cache"),)),
    **dict.fromkeys(("block_tables", "page_table"), (_as("block_table"),)),
    **dict.fromkeys(("cache_seqlens", "seq_lens", "seqused_k", "kv_lens"), (_as("context_lens"),)),
    **dict.fromkeys(("k_scale", "k_descale"), (_as("key_scale"),)),
    **dict.fromkeys(("v_scale", "v_descale"), (_as("value_scale"),)),
    **dict.fromkeys(("position_ids", "pos", "offsets"), (_as("positions"),)),
    **dict.fromkeys(("slot_mapping", "slot_ids"), (_as("slots"),)),
    **dict.fromkeys(("gate_proj", "w1"), (_as("w_gate"), _as("gate"))),
    **dict.fromkeys(("up_proj", "w3"), (_as("w_up"), _as("up"))),
    **dict.fromkeys(("down_proj", "w2"), (_as("w_down"),)),
    **dict.fromkeys(("output", "result"), (_as("out"),)),
    "inplace": (("out", lambda name, value: "out=x" if _is_true(value) else "the same call without it"),),
    # Attention
    **dict.fromkeys(("softmax_scale", "sm_scale", "qk_scale"), (_as("scale"), _as("factor"))),
    **dict.fromkeys(("is_causal", "causal_mask"), (_as("causal"),)),
    **dict.fromkeys(("window_size", "local_window_size", "attention_window"), (("window", _window),)),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), (("window", _sliding),)),
    **dict.fromkeys(("attn_mask", "attention_mask"), (("mask", _attention_mask),)),
    **dict.fromkeys(("key_padding_mask", "padding_mask"), (("mask", _padding_mask),)),
    **dict.fromkeys(("attn_bias", "attention_bias", "score_bias", "position_bias"), (_as("bias"),)),
    **dict.fromkeys(("soft_cap", "logits_soft_cap", "logit_softcap", "attn_logit_softcapping"), (_as("softcap"),)),
    **dict.fromkeys(("alibi", "alibi_bias", "slopes"), (_as("alibi_slopes"),)),
    **dict.fromkeys(("s_aux", "sink", "attention_sinks", "learnable_sink"), (_as("sinks"),)),
    **dict.fromkeys(("return_softmax_lse", "return_logsumexp"), (_as("return_lse"),)),
    **dict.fromkeys(
        ("return_attn_probs", "need_weights", "output_attentions"),
        (
            (
                "return_lse",
                lambda name, value: "return_lse=True for the log-sum-exps; weights: softmax(qk_scores(q, k))",
            ),
        ),
    ),
    **dict.fromkeys(("dropout_p", "dropout", "attn_dropout", "p"), (_as("top_p"), _NO_DROPOUT)),
    **dict.fromkeys(("enable_gqa", "num_kv_heads", "num_key_value_heads"), (_NO_GROUPS,)),
    **dict.fromkeys(("qkv_format", "tensor_layout", "qkv_layout", "input_layout"), (("layout", _layout),)),
    **dict.fromkeys(("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_query"), (_as("cu_seqlens_q"),)),
    **dict.fromkeys(("cu_seq_lens_k", "cu_seqlens_kv", "cu_seqlens_key"), (_as("cu_seqlens_k"),)),
    **dict.fromkeys(("max_length_q", "max_seq_len_q", "max_seqlen"), (_as("max_seqlen_q"),)),
    **dict.fromkeys(("max_length_k", "max_seq_len_k", "max_seqlen_kv"), (_as("max_seqlen_k"),)),
    **dict.fromkeys(("num_kv_splits", "kv_splits", "splits", "split_k"), (_as("num_splits"),)),
    "deterministic": (_FORWARD_ONLY,),
    "training": (_FORWARD_ONLY,),
    # Norms, rows, products
    **dict.fromkeys(
        ("epsilon", "variance_epsilon", "layer_norm_eps", "rms_norm_eps", "layernorm_epsilon", "norm_eps"),
        (_as("eps"),),
    ),
    "normalized_shape": (_without("the norm is over the last axis of x"),),
    **dict.fromkeys(("offset", "unit_offset", "zero_centered_gamma"), (_as("weight_offset"),)),
    **dict.fromkeys(("dim", "axis"), (_as("axes"), (None, _axis))),
    **dict.fromkeys(("dims", "perm", "permutation"), (_as("axes"),)),
    **dict.fromkeys(("transpose_a", "trans_a"), (("a", lambda name, value: "a.swapaxes(-1, -2), a view, as a"),)),
    **dict.fromkeys(("trans_b", "transb"), (_as("transpose_b"),)),
    **dict.fromkeys(("act", "act_fn", "hidden_act", "activation_fn"), (_as("activation"),)),
    **dict.fromkeys(("qtype", "quant_type", "fmt"), (_as("format"),)),
    **dict.fromkeys(("out_dtype", "output_dtype"), (_as("dtype"), _LIKE_THE_INPUT)),
    **dict.fromkeys(("dtype", "precision", "compute_dtype"), (_LIKE_THE_INPUT,)),
    **dict.fromkeys(("repeats", "num_groups"), (_as("n_rep"),)),
    # Positions
    **dict.fromkeys(("theta", "rope_theta", "rope_base"), (_as("base"),)),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (_as("scaling"),)),
    **dict.fromkeys(("interleave", "interleaved", "rope_interleaved"), (("variant", _interleaved),)),
    **dict.fromkeys(("is_neox", "is_neox_style", "neox"), (("variant", _neox),)),
    **dict.fromkeys(("rot_dim", "rotary_ndims", "dim_rotary"), (_as("rotary_dim"),)),
    # Tokens
    **dict.fromkeys(("temp", "temperatures"), (_as("temperature"),)),
    **dict.fromkeys(("topk", "top_ks"), (_as("top_k"),)),
    **dict.fromkeys(("topp", "top_ps", "nucleus"), (_as("top_p"),)),
    "do_sample": (("temperature", _greedy),),
    **dict.fromkeys(("generator", "random_seed", "rng"), (("seed", lambda name, value: "seed=, a number"),)),
}
