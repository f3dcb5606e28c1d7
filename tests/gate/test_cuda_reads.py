"""Which bytes of quantized blocks the CUDA lowering reads: all of its addresses, computed on this host."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from llvmlite import binding, ir

from rocmkern.tile.formats import FORMATS

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'rocmkern[cuda]'")

from rocmkern.tile._lowering.cuda.quantized import reaches_beyond, runs_of_unit

I32, I64 = ir.IntType(32), ir.IntType(64)
BLOCKS = 2
#: A row may start anywhere.
START = 1 << 20


@functools.cache
def reads_of(name, unit, alignment):
    """``reads(row, column)``: address, whether it is needed, bytes, and needed bytes (or -1: all) of each read.

    The function runs here: what would be decoded is thrown away, and with it the instructions of the GPU.
    """
    module, seen = ir.Module(), []
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64, I64, I64.as_pointer()]), "reads")
    b = ir.IRBuilder(fn.append_basic_block())

    def load(address, needed, nbytes, count):
        count = ir.Constant(I64, -1) if count is None else b.sext(count, I64)
        for value in (address, b.zext(needed, I64), ir.Constant(I64, nbytes), count):
            b.store(value, b.gep(fn.args[2], [ir.Constant(I32, len(seen))]))
            seen.append(value)
        return [ir.Constant(I32, 0)] * max(1, nbytes // 4)

    runs_of_unit(b, name, *fn.args[:2], unit, load, alignment)
    b.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    parsed = binding.parse_assembly(str(module))
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(parsed, passes)
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

    def reads(row, column):
        out = np.zeros((len(seen) // 4, 4), np.int64)
        function(engine.get_function_address("reads"))(row, column, out.ctypes.data)
        return out

    return reads


@pytest.mark.parametrize("alignment", [1, 2, 16])
@pytest.mark.parametrize("unit", [1, 16, 32])
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_read_to_its_last_byte_and_no_further(name, unit, alignment):
    kind = FORMATS[name]
    if unit > kind.group:
        pytest.skip("a unit shares a scale")
    ends, behind = [], []
    for row in range(START, START + 16, alignment):
        end = row + BLOCKS * kind.nbytes
        for column in range(0, BLOCKS * kind.elements, unit):
            reads = reads_of(name, unit, alignment)(row, column)
            address, _, nbytes, count = reads[reads[:, 1] == 1].T
            assert (address > row - 4).all(), "nothing lies before the word of the first byte"
            assert (address % nbytes == 0).all(), "a read is aligned"
            # Where the source ends within a word, only the bytes that are needed are read.
            ends.append((address + np.where(count < 0, nbytes, np.minimum(count, nbytes)) - end).max())
            behind.append((address + nbytes - end).max())
    assert max(ends) == 0
    assert max(behind) <= 0 or reaches_beyond(name, unit, alignment), "somebody looks where the source ends"
