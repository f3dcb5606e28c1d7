"""Values in host memory that a call looks at in a way that a plan can repeat.

A plan follows from what arrays are, not from their elements. Where an operation must know elements, it says what it
asks of them, and gets nothing else: a plan then asks again in each call, and goes on as it was recorded only where the
answer is the same one. An error is raised by the question, so that it is the same in both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls.view import View, host_array, view_of


def look(question: Callable[..., Any], *views: View) -> Any:
    """Return ``question(*arrays)``, or raise what it raises.

    Parameters
    ----------
    question : callable
        Looks at arrays and may refuse them. Its answer is compared (``==``), and follows from the arrays, and from
        nothing else that differs between two calls of one plan: from shapes and element types, say.
    *views : View
        Arguments of the operation, in host memory.
    """
    answer = question(*map(host_array, views))
    recorder = _recording.active()
    if recorder is not None:
        recorder.looked(views, question, answer)
    return answer


def converted(view: View, make: Callable[[np.ndarray], np.ndarray]) -> View:
    """View of the new array ``make(array)``.

    Parameters
    ----------
    view : View
        Of an argument, in host memory.
    make : callable
        Gives a new array, or raises. Its element type, shape and strides follow from the layout of its argument.
    """
    new = view_of(make(host_array(view)))
    recorder = _recording.active()
    if recorder is not None:
        recorder.converted(view, make, new)
    return new.placed(view.place)
