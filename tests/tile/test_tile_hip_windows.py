"""Windows of stages on AMD GPUs: the barriers around them and the addresses in them, as they stand in the code."""

import ctypes

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from rocmkern.tile._lowering.shared.banks import places

try:
    from rocmkern.tile._lowering.hip import barriers, emit
    from rocmkern.tile._lowering.hip.spots import Spot
except Exception as e:  # without ROCm's libraries it is not always an ImportError
    pytest.skip(f"numba.hip cannot be imported ({type(e).__name__}: {e})", allow_module_level=True)

I32 = ir.IntType(32)


@pytest.fixture
def b():
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "kernel")
    return ir.IRBuilder(function.append_basic_block("entry"))


def acquire(b):
    barriers.before_writing(b)
    b.alloca(ir.IntType(32), name="written")
    barriers.after_writing(b)


def meetings(b):
    """What stands in the function: barriers, and what is written between them."""
    names = {"llvm.amdgcn.s.barrier": "|", "alloca": "w"}
    instructions = [x for block in b.function.blocks for x in block.instructions]
    return "".join(names.get(getattr(getattr(x, "callee", None), "name", x.opname), "") for x in instructions)


def test_acquires_that_follow_each_other_share_their_barriers(b):
    for _ in range(3):
        acquire(b)
    assert meetings(b) == "|www|"
    assert sum(isinstance(x, ir.instructions.Fence) for x in b.block.instructions) == 4


def test_an_intrinsic_function_between_them_changes_nothing(b):
    acquire(b)
    emit.schedule_no_further(b)
    emit.keep_order(b)
    acquire(b)
    assert meetings(b) == "|ww|"


@pytest.mark.parametrize("between", ["read", "another block", "call"])
def test_what_may_read_a_window_keeps_them(b, between):
    acquire(b)
    if between == "read":
        barriers.reading(b)
    elif between == "another block":
        block = b.append_basic_block("next")
        b.branch(block)
        b.position_at_end(block)
    else:
        b.call(ir.Function(b.module, ir.FunctionType(ir.VoidType(), []), "device_function"), [])
    acquire(b)
    assert meetings(b) == "|w||w|"


def test_a_function_knows_nothing_of_another_one(b):
    acquire(b)
    other = ir.Function(b.module, ir.FunctionType(ir.VoidType(), []), "other")
    inner = ir.IRBuilder(other.append_basic_block("entry"))
    acquire(inner)
    acquire(b)
    assert meetings(inner) == "|w|" and meetings(b) == "|ww|"


def numbers(build):
    """The i32 function of two i32 that ``build(b, x, y)`` makes, for this CPU."""
    module = ir.Module()
    module.triple = llvm.get_process_triple()
    function = ir.Function(module, ir.FunctionType(I32, [I32, I32]), "numbers")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    b.ret(build(b, *function.args))
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
    compiled = prototype(engine.get_function_address("numbers"))
    compiled.engine = engine  # has the code
    return compiled


@pytest.mark.parametrize(
    "gfx, length, read", [("gfx1100", 64, 16), ("gfx942", 64, 16), ("gfx950", 128, 16), ("gfx942", 96, 8)]
)
def test_spots_are_places(gfx, length, read):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    window = places(gfx, 64, length, read)

    def there(line, byte):
        return window.place(line * window.pitch + byte)

    spot = numbers(lambda b, line, byte: Spot.of(b, window, line, byte).at())
    assert all(spot(line, byte) == there(line, byte) for line in range(64) for byte in (0, 4, 16, length - 4))
    ahead = numbers(lambda b, line, byte: Spot.of(b, window, line, byte).at(16, 32))
    assert all(ahead(line, byte) == there(line + 16, byte + 32) for line in range(16) for byte in (0, 4, 16))
    further = numbers(lambda b, line, byte: Spot.of(b, window, line, ir.Constant(I32, 0)).further(byte).at(32))
    assert all(further(line, byte) == there(line + 32, byte) for line in range(16) for byte in (0, 4, length - 4))
