"""What a call of `flash_attention_backward` is beside an attention: what is given, what is asked for, where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOAT32, Argument, accept, accept_outs
from rocmkern.calls.types import ArrayLike
from rocmkern.ops.attention.problem import Scores, Tensors
from rocmkern.runtime.errors import ArgumentError


@dataclass(frozen=True)
class Given:
    """What the forward gave, and the gradients of that.

    Attributes
    ----------
    dout, o : Argument
        As the result.
    lse : Argument
    dlse : Argument, optional
    """

    dout: Argument
    o: Argument
    lse: Argument
    dlse: Argument | None

    @classmethod
    def of(cls, tensors: Tensors, dout: ArrayLike, o: ArrayLike, lse: ArrayLike, dlse: ArrayLike | None) -> Given:
        """Those of the public arguments."""
        q = tensors.q
        given = cls(
            accept("dout", dout),
            accept("o", o, or_float32(q.dtype)),
            accept("lse", lse, (FLOAT32,)),
            None if dlse is None else accept("dlse", dlse, (FLOAT32,)),
        )
        _arguments.same_dtype(q, [given.dout])
        for x in (given.dout, given.o):
            _checks.same_shape(x, tensors.out_shape, "that of the result of flash_attention")
        for lses in (given.lse, given.dlse):
            if lses is not None:
                _checks.same_shape(lses, tensors.lse_shape, "that of its log-sum-exp")
        _arguments.same_place(q, given.arrays)
        return given

    @property
    def arrays(self) -> list[Argument | None]:
        """All of them."""
        return [self.dout, self.o, self.lse, self.dlse]


def or_float32(dtype: np.dtype) -> tuple[np.dtype, ...]:
    """The dtypes of a result: that of the arguments, or float32, which is the result before it is rounded."""
    return (dtype,) if dtype == FLOAT32 else (dtype, FLOAT32)


def asked_for(scores: Scores, **flags: Any) -> list[Argument]:
    """The arguments ``x`` of the scores whose gradients are asked for by flags ``return_dx``."""
    found = []
    for name, flag in flags.items():
        if _checks.flag(name, flag):
            x = getattr(scores, name.removeprefix("return_d"))
            if x is None:
                raise ArgumentError(name, "True", f"False where there is no {name.removeprefix('return_d')}")
            found.append(x)
    return found


def gradients_of(inputs: Sequence[Argument], out: Any, others: Sequence[Argument | None]) -> list[Argument]:
    """Where the gradients of some inputs go: what ``out=`` says, or new arrays.

    Each has the shape of its input, and its dtype, or float32 where ``out=`` has that.
    """
    names = [f"d{x.name}" for x in inputs]
    if out is None:
        return [
            _results.allocate(name, x.unconverted.shape, x.dtype, inputs[0])
            for name, x in zip(names, inputs, strict=True)
        ]
    likes = [(x.unconverted.shape, or_float32(x.dtype)) for x in inputs]
    return accept_outs(out, likes, f"a tuple of {len(inputs)} arrays: {', '.join(names)}", others)
