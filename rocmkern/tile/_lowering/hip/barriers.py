"""Barriers around the windows of stages: one before they are written, one before they are read.

Acquires that follow each other share both::

    barrier                            every wave is done with what the windows held
    write a window, write another
    barrier                            every wave sees what they hold

An acquire cannot know whether another one follows. So it ends with the second barrier, and the next one takes it away
if nothing was read in between: a record says in which block the last acquire ended. What is called there, other than
an intrinsic function, may read a window.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from llvmlite import ir

from rocmkern.tile._lowering.hip.emit import local_barrier


@dataclass
class _Acquired:
    """The end of an acquire: its block, how many instructions that had, and those of the barrier."""

    block: ir.Block
    length: int
    barrier: list[ir.Instruction]

    def is_last(self, b: ir.IRBuilder) -> bool:
        """Whether the builder stands in the block, and nothing behind the barrier may have read a window."""
        behind = self.block.instructions[self.length :]
        callees = (x.callee for x in behind if isinstance(x, ir.CallInstr))
        silent = all(isinstance(x, ir.InlineAsm) or x.name.startswith("llvm.") for x in callees)
        return b.block is self.block and silent


_last: weakref.WeakKeyDictionary[ir.Function, _Acquired] = weakref.WeakKeyDictionary()


def before_writing(b: ir.IRBuilder) -> None:
    """Wait until windows may be written."""
    last = _last.pop(b.function, None)
    if last is None or not last.is_last(b):
        local_barrier(b)
        return
    for instruction in last.barrier:
        b.block.instructions.remove(instruction)
    b.position_at_end(b.block)


def after_writing(b: ir.IRBuilder) -> None:
    """Wait until what was written into windows may be read."""
    barrier = local_barrier(b)
    _last[b.function] = _Acquired(b.block, len(b.block.instructions), barrier)


def reading(b: ir.IRBuilder) -> None:
    """Take note that a window is read."""
    _last.pop(b.function, None)
