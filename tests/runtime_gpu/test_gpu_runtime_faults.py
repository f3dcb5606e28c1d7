"""The checks that notice faults of the runtime, on a real driver's queues: sound without a fault, failing with one."""

from __future__ import annotations

import pytest

from rocmkern.matrix.faults import runtime


def test_the_checks_hold_on_this_device(device):
    assert runtime.failing_checks(lambda: device) == {}


@pytest.mark.parametrize("fault", [fault.name for fault in runtime.FAULTS])
def test_a_fault_is_noticed_on_the_virtual_gpu(vgpu, fresh_process, fault):
    # Work runs when something waits for it, so that what did not wait comes too early.
    code = f"""
        from rocmkern.matrix.faults import inject, runtime
        from rocmkern.ops.catalog import FAULTS
        from rocmkern.runtime.devices import open_device
        device = open_device("hip")
        import vgpu
        vgpu.config(ASYNC=1, ASYNC_DELAY=0)
        with inject(FAULTS[{fault!r}]):
            print(*runtime.failing_checks(lambda: device))
    """
    assert fresh_process(code).split(), "no check notices it"
