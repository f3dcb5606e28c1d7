"""Sums over 65536 rows of equal numbers, whose roundings all go one way: no sum is one chain in float32.

A chain of so many tenths is off by 6e-4. Products of matrices are not among these sums: their depth is one chain.
"""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern import targets

ROWS, TENTH = 65536, np.float32(0.1)
#: Measured: 1.0e-5 of a bias of attention, else at most 4e-6, of losses and of sinks below 1e-6.
BOUND = 2e-5


def ones(*shape):
    return np.ones(shape, np.float32)


def tenths(*shape):
    return np.full(shape, TENTH)


def linear_bias():
    return rocmkern.linear_backward(tenths(ROWS, 3), ones(ROWS, 1), ones(3, 1), ones(3), needs=("bias",)), 1.0


def quantized_linear_bias():
    blocks = rocmkern.quantize(ones(3, 32), "q8_0")
    x = ones(1, 32).repeat(ROWS, 0)
    given = (tenths(ROWS, 3), x, blocks, "q8_0", ones(3))
    return rocmkern.quantized_linear_backward(*given, needs=("bias",)), 1.0


def mlp_bias():
    weights = (None, ones(1, 1), ones(3, 1))
    found = rocmkern.mlp_backward(
        tenths(ROWS, 3), ones(ROWS, 1), *weights, b_down=ones(3), activation=None, needs=("b_down",)
    )
    return found, 1.0


def norm_weight(function, **parameters):
    """Of rows of ones and minus ones, whose norm they are."""
    x = np.tile(np.array([1, -1], np.float32), (ROWS, 2))
    return function(TENTH * x, x, ones(4), *parameters.values(), eps=0.0)


def rms_norm_weight():
    return norm_weight(rocmkern.rms_norm_backward)[1], 1.0


def layer_norm_weight():
    return norm_weight(rocmkern.layer_norm_backward, bias=ones(4))[1], 1.0


def layer_norm_bias():
    return rocmkern.layer_norm_backward(tenths(ROWS, 3), ones(ROWS, 3), ones(3), ones(3))[2], 1.0


def embedding():
    return rocmkern.embedding_backward(tenths(ROWS, 3), ones(2, 3), np.zeros(ROWS, np.int64))[0], 1.0


def losses():
    loss, _ = rocmkern.linear_cross_entropy(ones(ROWS, 1), np.zeros((4, 1), np.float32), *TARGETS, reduction="sum")
    return loss, np.log(4) / TENTH


def loss_bias():
    x, weight = ones(ROWS, 1), np.zeros((4, 1), np.float32)
    given = (np.array(TENTH), x, weight, *TARGETS, np.full(ROWS, np.log(4), np.float32))
    return rocmkern.linear_cross_entropy_backward(*given, bias=ones(4) * 0, reduction="sum", needs=("bias",))[1:], 0.25


TARGETS = (np.zeros(ROWS, np.int64),)


def attention(**options):
    """Of queries and keys of zeros: two keys, values 1 and 0."""
    q, k, v = np.zeros((1, 1, ROWS, 8), np.float32), np.zeros((1, 1, 2, 8), np.float32), ones(1, 1, 2, 8)
    v[:, :, 1] = 0
    asked = {f"return_d{name}": True for name in options if name != "causal"}
    o, lse = rocmkern.flash_attention(q, k, v, return_lse=True, **options)
    return rocmkern.flash_attention_backward(tenths(*q.shape), q, k, v, o, lse, **options, **asked)[3]


def attention_sinks():
    """Three weights of a third, and dout . o is 8 / 3 of a tenth."""
    return attention(sinks=np.zeros(1, np.float32)), -8 / 9


def attention_bias():
    return attention(bias=np.zeros((1, 1, 1, 2), np.float32))[..., 0], 8 * 0.5 * 0.5


SUMS = (
    linear_bias,
    quantized_linear_bias,
    mlp_bias,
    rms_norm_weight,
    layer_norm_weight,
    layer_norm_bias,
    embedding,
    losses,
    loss_bias,
    attention_sinks,
    attention_bias,
)


@pytest.mark.parametrize("of", SUMS, ids=lambda of: of.__name__)
def test_sums_of_equal_numbers(of):
    with targets.using("cpu"):
        found, each = of()
    exact = ROWS * float(TENTH) * each
    assert np.abs(np.asarray(found, np.float64) - exact).max() <= BOUND * abs(exact)
