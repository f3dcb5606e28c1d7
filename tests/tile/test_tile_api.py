"""What the language says of arguments that do not depend on a target."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern import TileError
from rocmkern import tile as T


def test_alignments_are_powers_of_two_up_to_16():
    blocks, like = np.zeros((2, 2 * 18), np.uint8), np.zeros((1, 1), np.float32)
    for alignment in range(-1, 34):
        if alignment in (1, 2, 4, 8, 16):
            assert T.quantized(blocks, "q4_0", like, alignment).shape == (2, 64)
        else:
            with pytest.raises(TileError, match=f"alignment must be 1, 2, 4, 8 or 16, got {alignment}$"):
                T.quantized(blocks, "q4_0", like, alignment)
