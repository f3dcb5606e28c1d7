"""float16 from and to float32 without instructions for it: every float16, and the places where rounding decides."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import ctypes

import llvmlite.binding as llvm
from llvmlite import ir

from rocmkern.targets import half_conversions, host_cpu

I16, I32 = ir.IntType(16), ir.IntType(32)


@pytest.fixture(scope="module")
def functions():
    """The two functions, from and to bits, as machine code of a processor without F16C."""
    if not host_cpu.is_x86_64():
        pytest.skip("not an x86-64 processor")
    module = ir.Module()
    half_conversions.add_to(module)
    kinds = (("widen", half_conversions.EXTEND, I16, I32), ("narrow", half_conversions.TRUNCATE, I32, I16))
    for name, called, given, result in kinds:
        function = ir.Function(module, ir.FunctionType(result, [given]), name)
        b = ir.IRBuilder(function.append_basic_block())
        conversion = module.globals[called]
        b.ret(b.bitcast(b.call(conversion, [b.bitcast(function.args[0], conversion.args[0].type)]), result))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu="x86-64-v2", opt=0)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    widen = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint16)(engine.get_function_address("widen"))
    narrow = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_uint32)(engine.get_function_address("narrow"))
    yield widen, narrow
    engine.close()


def test_every_float16_is_widened(functions):
    widen, _ = functions
    halves = np.arange(1 << 16, dtype=np.uint16)
    got = np.array([widen(int(bits)) for bits in halves], np.uint32)
    expected = halves.view(np.float16).astype(np.float32).view(np.uint32)
    nan = np.isnan(halves.view(np.float16))
    np.testing.assert_array_equal(got[~nan], expected[~nan])
    # A signalling NaN becomes a quiet one of the same digits, as instructions make it.
    np.testing.assert_array_equal(got[nan], expected[nan] | 0x400000)


def test_float32_is_rounded_to_the_nearest_float16(functions):
    _, narrow = functions
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (finite[1:].astype(np.float64) + finite[:-1]) / 2
    values = np.concatenate(
        [finite, middles, np.nextafter(middles.astype(np.float32), 0), np.nextafter(middles.astype(np.float32), np.inf)]
        + [[65504, 65519.996, 65520, 1e5, np.inf, 1e-45, 2.0**-25, np.nextafter(np.float32(2.0**-25), 1)]]
    ).astype(np.float32)
    for signed in (values, -values):
        got = np.array([narrow(int(bits)) for bits in signed.view(np.uint32)], np.uint16)
        with np.errstate(over="ignore", under="ignore"):
            np.testing.assert_array_equal(got, signed.astype(np.float16).view(np.uint16))


def test_nan_stays_nan(functions):
    _, narrow = functions
    for bits in (0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0xFF802000):
        assert np.isnan(np.uint16(narrow(bits)).view(np.float16)), hex(bits)
