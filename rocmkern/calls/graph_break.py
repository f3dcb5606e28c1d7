"""Operations under ``torch.compile``: the graph ends before them, they run as ever, and a new graph begins after them.

That is what ``torch.compiler.disable`` does to a function. It lies in a part of PyTorch that takes seconds to import,
and PyTorch itself may be imported later than we are, so its two marks are set here without it: an attribute that ends
a graph which comes to the function, and, as soon as PyTorch is there, the order not to look into its frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import Any

_REASON = "rocmkern's operations launch kernels of their own, which no graph can hold"
_codes: set[CodeType] = set()


def end_graphs_before(function: Callable[..., Any]) -> None:
    """Make a function one that ``torch.compile`` calls as it is."""
    marked: Any = function
    marked._torchdynamo_disable, marked._torchdynamo_disable_msg = True, _REASON
    _codes.add(marked.__code__)
    torch = sys.modules.get("torch")
    if torch is not None:
        hide_frames(torch)


def hide_frames(torch: Any) -> None:
    """Tell PyTorch not to compile the frames of the functions, nor what they call."""
    with suppress(AttributeError):  # a release without this order, or PyTorch while it is being imported
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        for code in _codes:
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
