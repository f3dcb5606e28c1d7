"""float16 from and to float32 in integer arithmetic, for processors without instructions that convert (F16C).

LLVM then calls two functions of a compiler's run-time library, ``__extendhfsf2`` and ``__truncsfhf2``. An object brings
its own, made here, as it may call nothing but libm and libc.

    float32 of float16     Shifting the 15 lower bits left by 13 puts the digits where they belong, with exponents
                           that are 112 too small. Infinities and NaNs need 112 more than that. A subnormal number has
                           no leading one: it gets one, which a subtraction takes away again, exactly.
    float16 of float32     To nearest even, in the integer, whose carries run into the exponent as they should. Below
                           2^-14 adding 0.5 lets the addition round, as the last digit of 0.5 is 2^-24, that of a
                           subnormal float16. NaNs stay NaNs, quiet, with their upper digits.
"""

from __future__ import annotations

from llvmlite import ir

EXTEND, TRUNCATE = "__extendhfsf2", "__truncsfhf2"

_I16, _I32, _F16, _F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()


def add_to(module: ir.Module) -> None:
    """Define both functions in a module."""
    _extend(module)
    _truncate(module)


def _i32(number: int) -> ir.Constant:
    return ir.Constant(_I32, number)


def _begin(module: ir.Module, name: str, result: ir.Type, argument: ir.Type) -> tuple[ir.IRBuilder, ir.Value]:
    function = ir.Function(module, ir.FunctionType(result, [argument]), name)
    function.attributes.add("nounwind")
    return ir.IRBuilder(function.append_basic_block()), function.args[0]


def _extend(module: ir.Module) -> None:
    b, x = _begin(module, EXTEND, _F32, _F16)
    bits = b.zext(b.bitcast(x, _I16), _I32)
    sign = b.shl(b.and_(bits, _i32(0x8000)), _i32(16))
    digits = b.shl(b.and_(bits, _i32(0x7FFF)), _i32(13))
    exponent = b.and_(digits, _i32(0x1F << 23))
    normal = b.add(digits, _i32(112 << 23))
    special = b.or_(b.add(digits, _i32(224 << 23)), b.select(_is_nan(b, digits), _i32(1 << 22), _i32(0)))
    least = ir.Constant(_F32, 2.0**-14)
    subnormal = b.bitcast(b.fsub(b.bitcast(b.add(digits, _i32(113 << 23)), _F32), least), _I32)
    finite = b.select(b.icmp_unsigned("==", exponent, _i32(0)), subnormal, normal)
    value = b.select(b.icmp_unsigned("==", exponent, _i32(0x1F << 23)), special, finite)
    b.ret(b.bitcast(b.or_(value, sign), _F32))


def _is_nan(b: ir.IRBuilder, digits: ir.Value) -> ir.Value:
    return b.icmp_unsigned(">", digits, _i32(0x1F << 23))


def _truncate(module: ir.Module) -> None:
    b, x = _begin(module, TRUNCATE, _F16, _F32)
    bits = b.bitcast(x, _I32)
    sign = b.and_(b.lshr(bits, _i32(16)), _i32(0x8000))
    size = b.and_(bits, _i32(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, _i32(13)), _i32(1))
    normal = b.lshr(b.add(b.sub(size, _i32(112 << 23)), b.add(odd, _i32(0xFFF))), _i32(13))
    half = ir.Constant(_F32, 0.5)
    subnormal = b.sub(b.bitcast(b.fadd(b.bitcast(size, _F32), half), _I32), _i32(126 << 23))
    nan = b.or_(_i32(0x7E00), b.and_(b.lshr(size, _i32(13)), _i32(0x3FF)))
    value = b.select(b.icmp_unsigned("<", size, _i32(113 << 23)), subnormal, normal)
    value = b.select(b.icmp_unsigned(">=", size, _i32(0x477FF000)), _i32(0x7C00), value)  # from 65520 on
    value = b.select(b.icmp_unsigned(">", size, _i32(0xFF << 23)), nan, value)
    b.ret(b.bitcast(b.trunc(b.or_(value, sign), _I16), _F16))
