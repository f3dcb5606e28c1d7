"""Gradients of operations that move rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference, targets
from rocmkern.calls.view import view_of
from rocmkern.ops.rows.backward.api import embedding_backward
from rocmkern.ops.rows.backward.kernels import order_indices
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, IndexOutOfRangeError


@pytest.mark.usefixtures("launch")
class TestEmbedding:
    @pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 5), (2, 1, 2, 2, 3)])
    def test_rows_are_added_up(self, normal, close, dtype, shape):
        dout, table = normal(*shape, 33, dtype=dtype), np.full((7, 33), np.nan, dtype)
        for kind in (np.int32, np.int64):
            indices = np.asarray(np.random.default_rng(1).integers(0, 7, shape).astype(kind))
            expected = reference.embedding_backward(dout, table, indices)
            close(embedding_backward(dout, table, indices), expected)
            out = np.ones((33, 7), dtype).T
            assert embedding_backward(dout, table, indices, accumulate=True, out=out) is out
            close(out, expected + 1)

    def test_rows_that_lie_apart(self, normal, close):
        dout, table = normal(2, 3, 2, 2, 3, 8), np.zeros((5, 8), np.float32)
        indices = np.random.default_rng(1).integers(0, 5, dout.shape[:-1])
        expected = reference.embedding_backward(dout, table, indices)
        close(embedding_backward(np.repeat(dout, 2, 1)[:, ::2], table, indices), expected)

    def test_nothing(self):
        table = np.ones((3, 4), np.float32)
        none = np.zeros((0,), np.int64)
        out = table.copy()
        embedding_backward(np.ones((0, 4), np.float32), table, none, accumulate=True, out=out)
        assert (out == 1).all()
        assert (embedding_backward(np.ones((0, 4), np.float32), table, none) == 0).all()
        assert embedding_backward(np.ones((2, 0), np.float32), table[:, :0], np.array([0, 2])).shape == (3, 0)

    @pytest.mark.parametrize(
        ("changes", "argument", "error"),
        [
            ({"dout": np.ones((3, 4), np.float32)}, "dout", ArgumentError),
            ({"dout": np.ones((2, 5), np.float32)}, "dout", ArgumentError),
            ({"table": np.ones((3, 4), np.float16)}, "table", ArgumentTypeError),
            ({"table": np.ones(4, np.float32)}, "table", ArgumentError),
            ({"indices": np.array([0, 3])}, "indices", ArgumentError),
            ({"indices": np.array([0, -1])}, "indices", ArgumentError),
            ({"indices": np.array([0.0, 1.0])}, "indices", ArgumentTypeError),
            ({"accumulate": True}, "accumulate", ArgumentError),
            ({"check": "no"}, "check", ArgumentTypeError),
            ({"out": np.ones((2, 4), np.float32)}, "out", ArgumentError),
        ],
    )
    def test_bad_arguments(self, changes, argument, error):
        given = {"dout": np.ones((2, 4), np.float32), "table": np.ones((3, 4), np.float32), "indices": np.array([0, 2])}
        with pytest.raises(error) as caught:
            embedding_backward(**{**given, **changes})
        assert caught.value.argument == argument


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_indices_in_device_memory_are_put_in_order_there(manager, normal, close, kind):
    dout, table = normal(5, 20, 9), np.zeros((7, 9), np.float32)
    indices = np.random.default_rng(1).integers(0, 7, (20, 5)).astype(kind)
    arrays = [manager.from_numpy(x) for x in (dout, table, indices)]
    result = embedding_backward(*arrays[:2], arrays[2].transpose(1, 0))
    close(result.to_numpy(), reference.embedding_backward(dout, table, indices.T))
    for each in (*arrays, result):
        each.close()


@pytest.mark.usefixtures("gpu")
def test_an_index_outside_in_device_memory_is_an_error_and_counts_nowhere(manager):
    dout, table = np.ones((4, 3), np.float32), np.zeros((2, 3), np.float32)
    arrays = [manager.from_numpy(x) for x in (dout, table, np.array([1, 2**33 + 1, -(2**40), 1]))]
    with pytest.raises(IndexOutOfRangeError, match="embedding_backward: indices"):
        embedding_backward(*arrays, check=True)
    result = embedding_backward(*arrays)
    with pytest.raises(IndexOutOfRangeError):
        manager.wait()
    np.testing.assert_array_equal(result.to_numpy(), [[0, 0, 0], [2, 2, 2]])
    for each in (*arrays, result):
        each.close()


@pytest.mark.parametrize("name", ["python", "cpu"])
def test_the_kernel_that_orders_is_stable(name):
    indices = np.random.default_rng(0).integers(0, 9, (2, 3, 4, 5))
    indices.flat[7], indices.flat[8] = 2**40, -3
    order, ids, error = np.empty(120, np.int32), np.empty(120, np.int32), np.zeros(1, np.float32)
    with targets.using(name):
        target = targets.current_target()
        cfg = order_indices.Config(arch=target.arch)
        target.launch(order_indices.order_indices, cfg, (8, 1, 1), [*map(view_of, (indices, order, ids, error)), 9])
    flat = np.clip(indices.reshape(-1), -1, 9)
    np.testing.assert_array_equal(order, np.argsort(flat, kind="stable"))
    np.testing.assert_array_equal(ids, np.sort(flat))
    assert error == 1
