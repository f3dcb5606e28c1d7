"""What the roundings inside an operation cost, against the magnitudes of what is added up.

A result that is small because large terms cancel carries the roundings of those terms. The error of one straightforward
computation does not show that reliably: it is one draw, and it may be lucky. So beside it stands what such roundings
cost by a formula, for each element. With u the unit roundoff of float32 (2^-24), and h that of the dtype in which a
kernel may keep numbers between two products (2^-11 for float16, 2^-8 for bfloat16, u for float32)::

    sum of terms t_j in float32     u * sum |t_j|           any order of summation: |error| <= (n - 1) u sum |t_j|, and
                                                            about u sum |t_j| where signs are mixed
    numbers w_j rounded before      h * sqrt(sum (w_j v_j)^2)   each error is h w_j v_j at most, and independent of the
    they are multiplied by v_j                              others: |error| <= c times that with probability at least
                                                            1 - 2 exp(-c^2 / 2)
    k operations in a row           k u times the magnitude of their result

The first line is N. J. Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), section 4.2; the second is
Hoeffding's inequality, as in N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis (SIAM J.
Sci. Comput. 41, 2019). The worst case of the second line, h * sum |w_j v_j|, is at most c times that for c^2 terms, but
for many it grows faster than results and their errors do, and would pass anything.

Arguments are those of `rocmkern.reference`, in the dtypes of the operation; results are float64, of the shape of each
output. Where magnitudes are not finite there is no cost: there the reference decides what is right.

Each family of operations has its own in ``rocmkern/ops/<family>/roundings.py``; an operation that only moves or rounds
has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.reference.gathered import gathered


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__") or name not in gathered("roundings"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return gathered("roundings")[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *gathered("roundings")})
