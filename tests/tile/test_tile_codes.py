"""Codes of small floats: every one of them against `ml_dtypes`, in NumPy and as machine code."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

from rocmkern.tile import codes
from rocmkern.tile._lowering.shared.ir_types import F32, I32

THEIRS = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def expected(name):
    bits = 8 if name == "e8m0" else codes.SMALL_FLOATS[name].bits
    every = np.arange(1 << bits, dtype=np.uint8)
    return every, every.view(ml_dtypes.float8_e8m0fnu if name == "e8m0" else THEIRS[name]).astype(np.float32)


def same(got, want):
    """Equal, zeros of the same sign, NaN in the same places."""
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("name", [*THEIRS, "e8m0"])
def test_numpy_decodes_every_code(name):
    every, want = expected(name)
    same(codes.decode_e8m0(every) if name == "e8m0" else codes.decode(name, every), want)


def compiled(name):
    """The IR of one code as a native function: code -> float32."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(F32, [I32]), "decode")
    b = ir.IRBuilder(function.append_basic_block())
    (code,) = function.args
    b.ret(codes.emit_e8m0(b, code) if name == "e8m0" else codes.emit_decode(b, name, code))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    machine = llvm.Target.from_default_triple().create_target_machine(features=llvm.get_host_cpu_features().flatten())
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine, ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int)(engine.get_function_address("decode"))


@pytest.mark.parametrize("name", [*THEIRS, "e8m0"])
def test_machine_code_decodes_every_code(name):
    every, want = expected(name)
    engine, decode = compiled(name)
    same(np.array([decode(int(code)) for code in every], np.float32), want)
    engine.close()


def test_an_unknown_small_float_is_refused_by_name():
    with pytest.raises(codes.TileError, match=r"e4m4.*e2m1"):
        codes.decode("e4m4", np.zeros(1, np.uint8))


@pytest.mark.parametrize(
    ("name", "largest"), [("e2m1", 6), ("e2m3", 7.5), ("e3m2", 28), ("e4m3", 448), ("e5m2", 57344)]
)
def test_largest_numbers(name, largest):
    kind = codes.SMALL_FLOATS[name]
    assert kind.largest == largest
    assert kind.largest_exponent == np.floor(np.log2(largest))
