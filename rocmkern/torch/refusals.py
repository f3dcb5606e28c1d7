"""Errors of arguments that stay ours inside ``torch.compile``."""

from __future__ import annotations

import functools
from typing import NoReturn

import torch

from rocmkern.runtime.errors import ArgumentError


def refused(argument: str, given: str, allowed: str, kind: type[ArgumentError] = ArgumentError) -> NoReturn:
    """Raise an `ArgumentError`; PyTorch's tracer would make an error about its own limits of a plain ``raise``."""
    tracing = torch._guards.TracingContext.try_get() is not None
    raise (_traced(kind) if tracing else kind)(argument, given, allowed)  # type: ignore[arg-type]  # a class is hashable


# The tracer calls it as it is, instead of looking into it.
refused._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _traced(kind: type[ArgumentError]) -> type[ArgumentError]:
    """An `ArgumentError` that the tracer lets pass: others it wraps into an error of its own."""
    # deferred: start-up
    from torch._dynamo.exc import UserError, UserErrorType

    class TracedArgumentError(kind, UserError):  # type: ignore[misc,valid-type]
        """An argument of an operation inside ``torch.compile`` has a value that is not allowed."""

        def __init__(self, argument: str, given: str, allowed: str):
            UserError.__init__(self, UserErrorType.INVALID_INPUT, f"{argument}: got {given}; allowed: {allowed}")
            kind.__init__(self, argument, given, allowed)

    return TracedArgumentError
