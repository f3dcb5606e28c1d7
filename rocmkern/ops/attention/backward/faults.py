"""Faults of the gradients of attention."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

GRADIENTS = ("flash_attention_backward", "flash_attention_backward_packed")


def _gradient(name: str, description: str, kernel: str, old: str, new: str) -> Fault:
    return Fault(name, description, GRADIENTS, edits=(Edit(kernel, old, new),))


FAULTS = (
    _gradient(
        "delta_forgotten",
        "gradients of scores leave out that weights add up to 1",
        "query_gradient",
        "gradient_of(cfg, T.dot_nt(dout_tile, values), p, delta, at_border)",
        "gradient_of(cfg, T.dot_nt(dout_tile, values), p, delta * 0.0, at_border)",
    ),
    _gradient(
        "delta_of_another_column",
        "keys take the deltas of the first queries in every step",
        "key_value_gradient",
        "T.load_columns(cfg, cfg.block_m, deltas[q_batch, head], q_start + n0, cfg.block_n)",
        "T.load_columns(cfg, cfg.block_m, deltas[q_batch, head], q_start, cfg.block_n)",
    ),
    _gradient(
        "gradient_of_lse_added",
        "dlse has the wrong sign",
        "row_deltas",
        "delta - T.load_rows(...)",
        "delta + T.load_rows(...)",
    ),
    _gradient(
        "seeing_nothing_divides",
        "a row that sees no key has weights of its log-sum-exp of minus infinity",
        "row_deltas",
        "T.where(offset == -T.NEG_INF, T.NEG_INF, offset)",
        "offset",
    ),
    _gradient("scale_of_dq_forgotten", "dq is not scaled", "query_gradient", "acc * scale", "acc * 1.0"),
    _gradient("scale_of_dk_forgotten", "dk is not scaled", "key_value_gradient", "dk_acc * scale", "dk_acc * 1.0"),
    _gradient(
        "dv_scaled",
        "dv is scaled",
        "key_value_gradient",
        "T.store_tile(dv_rows, (at,), 0, dv_acc, valid)",
        "T.store_tile(dv_rows, (at,), 0, dv_acc * scale, valid)",
    ),
    _gradient(
        "cap_without_derivative",
        "the derivative of the softcap is left out",
        "query_gradient",
        "before_cap(ds, ...)",
        "ds * 1.0",
    ),
    _gradient(
        "queries_without_border",
        "queries see all keys of a tile at the border",
        "query_gradient",
        "T.mask_outside(p, n0, low, high)",
        "T.mask_outside(p, n0, low * 0, high * 0 + k_len)",
    ),
    _gradient(
        "keys_without_border",
        "keys are seen by all queries of a tile at the border",
        "key_value_gradient",
        "T.mask_outside(p, n0, low, high)",
        "T.mask_outside(p, n0, low * 0, high * 0 + q_len)",
    ),
    _gradient(
        "one_head_of_a_group",
        "only the first query head of a group counts for its key",
        "sum_splits",
        "range(parts.shape[0])",
        "range(min(parts.shape[0], 1))",
    ),
    _gradient(
        "gradient_heads_by_modulo",
        "query head h reads key-value head h % Hkv",
        "query_gradient",
        "head * k.shape[1] // q.shape[1]",
        "head % k.shape[1]",
    ),
    _gradient(
        "windows_not_turned",
        "queries that see a key are looked for by the window as it is, not the other way round",
        "key_value_gradient",
        "T.maximum(diagonal - right, 0), T.minimum(diagonal + left, q_len - 1)",
        "T.maximum(diagonal - left, 0), T.minimum(diagonal + right, q_len - 1)",
    ),
    _gradient(
        "hidden_times_zero",
        "gradients of weights of 0 are multiplied, so a NaN that nobody sees reaches the result",
        "query_gradient",
        "gradient_of(cfg, T.dot_nt(dout_tile, values), p, delta, at_border)",
        "(T.dot_nt(dout_tile, values) - delta) * p",
    ),
    _gradient(
        "hidden_keys_multiplied",
        "keys of weight 0 are multiplied, so a NaN that nobody sees reaches the result",
        "query_gradient",
        "acc = T.dot_nn_where(weights, keys, acc)",
        "acc = T.dot_nn(weights, keys, acc)",
    ),
    _gradient(
        "padding_not_written",
        "rows of k that are no keys keep what was there",
        "key_value_gradient",
        "T.store_tile(dk_rows, (at,), 0, dk_acc * scale, valid)",
        "T.store_tile(dk_rows, (at,), 0, dk_acc * scale, is_key)",
    ),
    _gradient(
        "offsets_of_first_sequence",
        "keys of packed sequences take the log-sum-exps of the first one",
        "key_value_gradient",
        "T.load_columns(cfg, cfg.block_m, offsets[q_batch, head], q_start + n0, cfg.block_n)",
        "T.load_columns(cfg, cfg.block_m, offsets[q_batch, head], n0, cfg.block_n)",
    ),
    _gradient(
        "slopes_with_sign",
        "distances of ALiBi's slopes have a sign",
        "query_gradient",
        "T.rowdot(ds, T.absolute(T.distance(cfg, diagonal, n0, cfg.block_n)))",
        "T.rowdot(ds, T.distance(cfg, diagonal, n0, cfg.block_n))",
    ),
    _gradient(
        "sinks_with_weight",
        "a sink's gradient has the wrong sign",
        "row_deltas",
        "weight * delta * -1.0",
        "weight * delta",
    ),
    _gradient(
        "sums_of_first_sequence",
        "sums over all sequences have the first one only",
        "sum_heads",
        "last = x.shape[0]",
        "last = first + 1",
    ),
    _gradient(
        "bias_of_last_batch_element",
        "a bias that is repeated gets what its last place gives",
        "bias_gradient",
        "acc + gradient_of(...)",
        "acc * 0.0 + gradient_of(...)",
    ),
    _gradient(
        "bias_without_border",
        "biases of keys that are not seen have gradients",
        "bias_gradient",
        "T.mask_outside(p, n0, low, high)",
        "T.mask_outside(p, n0, low * 0, high * 0 + k_len)",
    ),
)
