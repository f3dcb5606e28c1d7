"""Register blocking of products on the CPU: every column is in a block, and a block fits into the registers."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from rocmkern.tile._lowering.cpu.microkernels import BLOCKING

#: Vector registers by the floats that one holds: AVX-512, AVX2, and what every processor has.
REGISTERS = {16: 32, 8: 16, 4: 16}


def test_each_width_of_vectors_has_a_blocking():
    assert BLOCKING.keys() == REGISTERS.keys()


@pytest.mark.parametrize("width", REGISTERS)
def test_blocks_become_single_columns_and_fit_into_the_registers(width):
    across, heights = BLOCKING[width]
    assert heights[-1] == 1, "what larger blocks leave would be left out"
    assert sorted(heights, reverse=True) == [*dict.fromkeys(heights)], "largest first"
    # Sums, vectors of a line of the tile, and the number that they are multiplied by.
    assert across * heights[0] + across + 1 <= REGISTERS[width]
