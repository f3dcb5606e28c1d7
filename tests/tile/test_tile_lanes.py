"""What the readers of quantized blocks know of offsets before a kernel runs."""

from __future__ import annotations

import pytest
from llvmlite import ir

from rocmkern.tile._lowering.shared.ir_types import I32, const
from rocmkern.tile._lowering.shared.lanes import FoldingBuilder


@pytest.fixture
def fold_and_multiple():
    """A builder, and a number that only the running kernel knows."""
    fn = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [I32]), "kernel")
    return FoldingBuilder(ir.IRBuilder(fn.append_basic_block())), fn.args[0]


def test_low_bits_of_a_sum_with_a_multiple_are_constants(fold_and_multiple):
    fold, multiple = fold_and_multiple
    place = fold.sum(multiple, 32, 6)
    assert fold.and_(place, const(I32, 63)).constant == 32
    assert fold.and_(fold.add(place, const(I32, 16)), const(I32, 31)).constant == 16
    assert fold.and_(fold.lshr(place, const(I32, 5)), const(I32, 1)).constant == 1


def test_bits_above_them_are_the_same_value(fold_and_multiple):
    fold, multiple = fold_and_multiple
    place = fold.sum(multiple, 32, 6)
    further = fold.add(place, const(I32, 16))
    assert fold.lshr(place, const(I32, 6)) is fold.lshr(further, const(I32, 6))


@pytest.mark.parametrize("mask", [64, 127])
def test_other_bits_are_not_known(fold_and_multiple, mask):
    fold, multiple = fold_and_multiple
    place = fold.sum(multiple, 32, 6)
    assert not isinstance(fold.and_(place, const(I32, mask)), ir.Constant)
    carried = fold.add(place, const(I32, 32))
    assert not isinstance(fold.and_(carried, const(I32, 63)), ir.Constant)
