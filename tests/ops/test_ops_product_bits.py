"""A product is the same bits wherever it is written.

Rows of x that lie together are one product, and by how many there are a way to compute it is chosen. Where the leading
axes of ``out=`` lie apart they are several products, and must be computed the same way.
"""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_bits_of_a_product_do_not_depend_on_where_it_is_written(normal, rows, target):
    x = normal(2, 2, rows, 512).astype(np.float16)
    square, blocks = normal(512, 512).astype(np.float16), rocmkern.quantize(normal(64, 512), "q4_0")
    calls = (
        lambda **out: rocmkern.linear(x, square[:64], **out),
        lambda **out: rocmkern.matmul(x, square[:, :64], **out),
        lambda **out: rocmkern.mlp(x, square, square, square[:64], **out),
        lambda **out: rocmkern.quantized_linear(x, blocks, "q4_0", **out),
    )
    for call in calls:
        with rocmkern.using(target):
            expected = call()
        for axes in ((1, 0, 2, 3), (3, 1, 2, 0)):
            out = np.empty([expected.shape[axis] for axis in axes], np.float16).transpose(np.argsort(axes))
            assert out.shape == expected.shape and not out.flags.c_contiguous
            with rocmkern.using(target):
                call(out=out)
            np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))
