"""The operations of this library and their seeded faults: what `matrix.yaml` may name.

Each family (see `places`) declares its own, so that a new family is one folder and no entry anywhere else::

    cases.py    ``OPERATIONS``: how arrays are made from a row's dimensions and features, what is compared with what,
                and what a call costs
    faults.py   ``FAULTS``: how its kernels can be wrong; none where there is no such file
"""

from __future__ import annotations

from importlib import import_module

from rocmkern.matrix.faults import runtime
from rocmkern.matrix.registry import Fault, Operation, Registry
from rocmkern.ops.places import modules

_DECLARED: list[Operation] = [each for name in modules("cases") for each in import_module(name).OPERATIONS]
_SEEDED: list[Fault] = [each for name in modules("faults") for each in import_module(name).FAULTS]
FAULTS: dict[str, Fault] = {fault.name: fault for fault in (*_SEEDED, *runtime.FAULTS)}
OPERATIONS = Registry(*_DECLARED, faults=FAULTS.values())
