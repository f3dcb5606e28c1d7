"""Global memory: single elements, pieces of up to 16 bytes, conversion."""

from __future__ import annotations

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import PTX_TYPE, VOID, asm, asm_many, to_fragments
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I8, I16, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import from_byte, to_byte
from rocmkern.tile.language.kinds import DTYPES, QUANTIZED

_BITS = {
    "float32": "b32", "float16": "b16", "bfloat16": "b16", "bool": "u8", "int32": "b32", "int64": "b64", "uint8": "u8",
    "int8": "u8", "float8_e4m3fn": "u8", "float8_e5m2": "u8",
}  # fmt: skip
#: PTX register constraint and LLVM type that take a loaded element.
REGISTERS = {"b16": ("h", I16), "u8": ("r", I32), "b32": ("r", I32), "b64": ("l", I64)}


def load_bits(b: ir.IRBuilder, address: ir.Value, dtype: str, exists: ir.Value) -> ir.Value:
    """An element as an integer of its bits; 0, without touching memory, where it does not exist."""
    bits = _BITS[dtype]
    letter, ty = REGISTERS[bits]
    code = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; mov.b{ty.width} $0, 0; @p ld.global.{bits} $0, [$1];}}"
    return asm(b, code, ty, f"=&{letter},l,r", [address, b.zext(exists, I32)], effect=True)


def bits_to_float32(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    if dtype == "float32":
        return b.bitcast(x, F32)
    if dtype == "float16":
        return b.fpext(b.bitcast(x, F16), F32)
    if dtype == "bfloat16":
        return b.bitcast(b.shl(b.zext(x, I32), const(I32, 16)), F32)
    if dtype == "bool":
        return b.uitofp(b.icmp_signed("!=", x, const(I32, 0)), F32)
    if dtype in QUANTIZED:
        return from_byte(b, b.trunc(x, I8), dtype)
    return b.uitofp(x, F32) if dtype == "uint8" else b.sitofp(x, F32)


def store_bits(b: ir.IRBuilder, address: ir.Value, bits: ir.Value, exists: ir.Value, nbytes: int | None = None) -> None:
    """Store an integer of 16 or 32 bits, or its lowest bytes, where it exists."""
    letter, width = ("h", 16) if bits.type == I16 else ("r", 8 * (nbytes or 4))
    code = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b{width} [$0], $1;}}"
    asm(b, code, VOID, f"l,{letter},r,~{{memory}}", [address, bits, b.zext(exists, I32)], effect=True)


def store_float32(b: ir.IRBuilder, address: ir.Value, x: ir.Value, dtype: str, exists: ir.Value) -> None:
    """Round to the element type, to nearest even, and store where the element exists."""
    if dtype == "float32":
        store_bits(b, address, b.bitcast(x, I32), exists)
    else:
        store_bits(b, address, asm(b, f"cvt.rn.{PTX_TYPE[dtype]}.f32 $0, $1;", I16, "=h,f", [x]), exists)


#: PTX type, registers and constraint of a piece of so many bytes.
_PIECES = {1: ("u8", 1, "r"), 2: ("u16", 1, "r"), 4: ("b32", 1, "r"), 8: ("v2.b32", 2, "r"), 16: ("v4.b32", 4, "r")}


def load_piece(b: ir.IRBuilder, address: ir.Value, nbytes: int, exists: ir.Value) -> list[ir.Value]:
    """Consecutive bytes as i32 words (1 and 2 bytes: one word); 0, without touching memory, where they do not exist."""
    kind, count, _ = _PIECES[nbytes]
    names = [f"${i}" for i in range(count)]
    clear = " ".join(f"mov.b32 {name}, 0;" for name in names)
    target = names[0] if count == 1 else f"{{{', '.join(names)}}}"
    code = f"{{.reg .pred p; setp.ne.b32 p, ${count + 1}, 0; {clear} @p ld.global.{kind} {target}, [${count}];}}"
    args = [address, b.zext(exists, I32)]
    if count == 1:
        return [asm(b, code, I32, "=&r,l,r", args, effect=True)]
    return asm_many(b, code, [I32] * count, ",".join(["=&r"] * count) + ",l,r", args, effect=True)


def load_bytes(b: ir.IRBuilder, address: ir.Value, count: ir.Value, exists: ir.Value) -> ir.Value:
    """The first ``count`` (i32) bytes of a word, byte by byte; the others are 0, and their memory is not touched."""
    word = const(I32, 0)
    for i in range(4):
        there = b.and_(exists, b.icmp_signed(">", count, const(I32, i)))
        (byte,) = load_piece(b, b.add(address, const(I64, i)), 1, there)
        word = b.or_(word, b.shl(byte, const(I32, 8 * i)))
    return word


def store_piece(b: ir.IRBuilder, address: ir.Value, words: list[ir.Value], exists: ir.Value) -> None:
    """Store 1, 2 or 4 words, aligned to their size, where they exist."""
    count = len(words)
    names = ", ".join(f"${i + 2}" for i in range(count))
    kind = "b32" if count == 1 else f"v{count}.b32"
    code = f"{{.reg .pred p; setp.ne.b32 p, $1, 0; @p st.global.{kind} [$0], {{{names}}};}}"
    if count == 1:
        code = code.replace("{$2}", "$2")
    constraints = "l,r" + ",r" * count + ",~{memory}"
    asm(b, code, VOID, constraints, [address, b.zext(exists, I32), *words], effect=True)


def join_pairs(b: ir.IRBuilder, elements: list[ir.Value], dtype: str) -> list[ir.Value]:
    """Bits of elements as words of pairs; see `TileLowering.gather`."""
    size = DTYPES[dtype]
    if size == 8:
        parts = [(b.trunc(x, I32), b.trunc(b.lshr(x, const(I64, 32)), I32)) for x in elements]
        return [word for part in parts for word in part]
    if size == 4:
        return elements
    wide = [x if x.type == I32 else b.zext(x, I32) for x in elements]
    return [b.or_(x, b.shl(y, const(I32, 8 * size))) for x, y in zip(wide[::2], wide[1::2], strict=True)]


def split_pairs(b: ir.IRBuilder, words: list[ir.Value], dtype: str) -> list[ir.Value]:
    """Bits of the elements of words of pairs."""
    size = DTYPES[dtype]
    if size == 8:
        pairs = zip(words[::2], words[1::2], strict=True)
        return [b.or_(b.zext(x, I64), b.shl(b.zext(y, I64), const(I64, 32))) for x, y in pairs]
    if size == 4:
        return words
    if size == 2:
        return [b.trunc(b.lshr(x, const(I32, shift)), I16) for x in words for shift in (0, 16)]
    return [b.and_(b.lshr(x, const(I32, shift)), const(I32, 255)) for x in words for shift in (0, 8)]


def pairs_to_float32(b: ir.IRBuilder, words: list[ir.Value], dtype: str) -> list[ir.Value]:
    return [bits_to_float32(b, x, dtype) for x in split_pairs(b, words, dtype)]


def float32_to_pairs(b: ir.IRBuilder, values: list[ir.Value], dtype: str) -> list[ir.Value]:
    """Words of pairs, rounded to nearest even."""
    if dtype == "float32":
        return [b.bitcast(x, I32) for x in values]
    if dtype in QUANTIZED:
        return join_pairs(b, [b.zext(to_byte(b, x, dtype), I32) for x in values], dtype)
    return to_fragments(b, values, dtype)
