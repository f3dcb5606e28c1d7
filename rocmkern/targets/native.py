"""A kernel as machine code of a processor: numba compiles its launch function to an object file.

The object has one function that others see, in C's terms ::

    int rocmkern_launch(const int64_t *words, int64_t nx, int64_t ny, int64_t first, int64_t last);

which runs the blocks ``first`` to ``last - 1`` of a grid of nx times ny times whatever and returns 0, or numba's number
of an error. It calls libm and libc and nothing else: the reference-counted buffers of the tile language are made by two
functions that are compiled into it (`_buffers`), in place of numba's own run-time library.

This module needs numba; what it makes does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit
from numba.core import codegen, compiler, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from rocmkern.runtime.errors import TileError
from rocmkern.targets import half_conversions, objects, source
from rocmkern.targets.host_cpu import Machine
from rocmkern.targets.messages import first_message
from rocmkern.tile import entry
from rocmkern.tile._lowering import cpu
from rocmkern.tile.check import check_consumed
from rocmkern.tile.language.kernel import Config, Kernel

SYMBOL = "rocmkern_launch"
TEMPLATE = """\
def launch(words, nx, ny, first, last):
    for block in range(first, last):
        body(
            config(CFG, block % nx, block // nx % ny, block // (nx * ny)),
            {arguments},
        )
"""
#: Of the launch function: an array of words, and four numbers.
ARGUMENTS = (types.CPointer(types.int64), *[types.int64] * 4)

#: numba's description of a buffer (its ``MemInfo``): references, what frees it and with what, data, size.
_HEADER_BYTES, _DATA_FIELD = 40, 3
_OK = (0, -2)  # numba's return codes of a value, and of None

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


class _Library(codegen.AOTCodeLibrary):
    """Functions on their way into an object; nothing of them is made into machine code before."""

    def _optimize_functions(self, module: llvm.ModuleRef) -> None:
        """Only say how data lies in memory: the kernel's module is optimised once, with all that it calls."""
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        if SYMBOL not in [function.name for function in self._final_module.functions]:
            return  # a device function, which becomes a part of a kernel's module and is optimised there
        # LLVM finds out that it needs conversions when it is too late to keep what nobody calls.
        _hide_all_but(self._final_module, (SYMBOL, half_conversions.EXTEND, half_conversions.TRUNCATE))
        super()._optimize_final_module()

    def get_pointer_to_function(self, name: str) -> int:
        """None: a device function is only ever compiled into a kernel."""
        return 0


class _Codegen(codegen.AOTCPUCodegen):
    """Numba's code generator for a processor that is named, with addresses of 64 bits."""

    _library_class = _Library

    def __init__(self, machine: Machine):
        self._machine = machine
        super().__init__("rocmkern")

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        options.update(cpu=self._machine.cpu, features=self._machine.features, reloc="static", codemodel="large")

    def set_env(self, name: str, env: Any) -> None:
        """Nothing: what is compiled here makes no Python objects."""


_codegens: dict[Machine, _Codegen] = {}


def compile_kernel(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...], machine: Machine) -> bytes:
    """Compile one variant to an object file.

    Parameters
    ----------
    kernel, cfg
        A function marked by `kernel`, and its configuration.
    dtypes : tuple of str
        Element type of each tensor argument.
    machine : Machine
        The processor.

    Raises
    ------
    TileError
        If the kernel misuses the tile language, or does what needs the interpreter.
    """
    check_consumed(kernel, cfg)
    text = TEMPLATE.format(arguments=",\n            ".join(source.argument_expressions(kernel, dtypes)))
    with global_compiler_lock, _compiling_for(machine) as context:
        cpu.install(kernel)
        space: dict[str, Any] = {
            "CFG": cpu.bound_config(cfg),
            "body": njit(inline="always", nogil=True, error_model="numpy", boundscheck=False)(kernel),
            "config": entry.config,
            "float32": entry.float32,
            "tensor": entry.tensor,
        }
        exec(compile(text, f"<{kernel.__name__}>", "exec"), space)
        flags = compiler.Flags()
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.nrt = flags.release_gil = True
        flags.error_model = "numpy"
        try:
            result = compiler.compile_extra(
                cpu_target.typing_context, context, space["launch"], ARGUMENTS, types.void, flags, {}
            )
        except NumbaError as e:
            raise TileError(f"kernel {kernel.__name__} for {cfg}: {first_message(e)}") from None
        library = result.library
        module = _entry(library, context, result.fndesc)
        if not machine.converts_halves:
            half_conversions.add_to(module)
        library.add_ir_module(module)
        code = library.emit_native_object()
    foreign = objects.foreign_names(code)
    if foreign:
        raise TileError(
            f"kernel {kernel.__name__} for {cfg}: it needs {', '.join(foreign)} of Python or numba; "
            "allowed in a kernel: tile operations, arithmetic, and functions of `math` that C has too"
        )
    return code


@contextlib.contextmanager
def _compiling_for(machine: Machine) -> Iterator[Any]:
    """Let numba compile for a machine, device functions too. Its lock is held: nothing else is compiled meanwhile."""
    context = cpu_target.target_context
    ours = _codegens.get(machine) or _codegens.setdefault(machine, _Codegen(machine))
    before = context._internal_codegen
    context._internal_codegen = ours
    try:
        yield context
    finally:
        context._internal_codegen = before


def _entry(library: Any, context: Any, descriptor: Any) -> ir.Module:
    """The function that is called from outside, and the buffers."""
    module = library.create_ir_module(SYMBOL)
    inner = ir.Function(module, context.call_conv.get_function_type(types.void, ARGUMENTS), descriptor.llvm_func_name)
    outer = ir.Function(module, ir.FunctionType(_I32, [_I64.as_pointer(), *[_I64] * 4]), SYMBOL)
    b = ir.IRBuilder(outer.append_basic_block())
    places = [b.alloca(parameter.type.pointee) for parameter in inner.args[:2]]  # of the result, of the error
    status = b.call(inner, [*places, *outer.args])
    fine = [b.icmp_signed("==", status, ir.Constant(_I32, code)) for code in _OK]
    b.ret(b.select(b.or_(*fine), ir.Constant(_I32, 0), status))
    _buffers(module)
    return module


def _buffers(module: ir.Module) -> None:
    """Memory of tiles and stages, from malloc: numba's description of it, then the data, aligned."""
    malloc = ir.Function(module, ir.FunctionType(_BYTES, [_I64]), "malloc")
    free = ir.Function(module, ir.FunctionType(ir.VoidType(), [_BYTES]), "free")

    allocate = ir.Function(module, ir.FunctionType(_BYTES, [_I64, _I32]), "NRT_MemInfo_alloc_aligned")
    size, alignment = allocate.args[0], allocate.args[1]
    b = ir.IRBuilder(allocate.append_basic_block())
    alignment = b.zext(alignment, _I64)
    room = b.add(b.add(size, alignment), ir.Constant(_I64, _HEADER_BYTES))
    memory = b.call(malloc, [room])
    with b.if_then(b.icmp_unsigned("==", memory, ir.Constant(_BYTES, None)), likely=False):
        b.ret(memory)  # numba makes a MemoryError of it
    start = b.add(b.ptrtoint(memory, _I64), ir.Constant(_I64, _HEADER_BYTES))
    start = b.and_(b.sub(b.add(start, alignment), ir.Constant(_I64, 1)), b.neg(alignment))
    fields = b.bitcast(memory, _I64.as_pointer())
    for index, value in ((0, ir.Constant(_I64, 1)), (_DATA_FIELD, start), (_DATA_FIELD + 1, size)):
        b.store(value, b.gep(fields, [ir.Constant(_I32, index)], source_etype=_I64))
    b.ret(memory)

    release = ir.Function(module, ir.FunctionType(ir.VoidType(), [_BYTES]), "NRT_MemInfo_call_dtor")
    b = ir.IRBuilder(release.append_basic_block())
    b.call(free, [release.args[0]])
    b.ret_void()
    for function in (allocate, release):
        function.attributes.add("noinline")
        function.attributes.add("nounwind")


def _hide_all_but(module: llvm.ModuleRef, names: tuple[str, ...]) -> None:
    """Let LLVM drop and inline everything but some functions."""
    for thing in (*module.functions, *module.global_variables):
        if not thing.is_declaration and thing.name not in names:
            thing.linkage = "internal"
