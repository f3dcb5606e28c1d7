"""Which device is taken when there are several."""

from __future__ import annotations

import pytest

from rocmkern.runtime.choice import choose_device
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, DeviceUnavailableError

GIB = 1 << 30


def rx(index):
    return DeviceInfo("hip", index, "AMD Radeon RX 7900 XT", "0000:03:00.0", False, 20 * GIB, "gfx1100")


def apu(index):
    # An APU may report more memory than the card has.
    return DeviceInfo("hip", index, "AMD Radeon 780M Graphics", "0000:c5:00.0", True, 64 * GIB, "gfx1103")


@pytest.mark.parametrize("devices", [[rx(0), apu(1)], [apu(0), rx(1)]])
def test_the_card_comes_before_the_apu_in_both_orders(devices):
    assert choose_device(devices).name == "AMD Radeon RX 7900 XT"


def test_then_the_one_with_more_memory_then_the_lower_index():
    small = DeviceInfo("hip", 0, "small", None, False, 8 * GIB)
    assert choose_device([small, rx(1)]) == rx(1)
    assert choose_device([rx(2), rx(1)]).index == 1
    assert choose_device([apu(0)]) == apu(0)


@pytest.mark.parametrize("wanted", [1, "1", "0000:C5:00.0", "c5:00.0", "780m", "radeon 780M GRAPHICS", " 780M "])
def test_a_wish_overrides(wanted):
    assert choose_device([rx(0), apu(1)], wanted) == apu(1)


def test_a_number_that_is_no_index_may_be_part_of_a_name():
    assert choose_device([rx(0), apu(1)], "7900") == rx(0)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [("radeon", "matches 2 devices"), ("5090", "matches no devices"), (7900, "no devices"), ("", "no")],
)
def test_an_ambiguous_or_absent_wish_lists_what_exists(wanted, problem):
    with pytest.raises(ArgumentError, match=problem) as caught:
        choose_device([rx(0), apu(1)], wanted, "ROCMKERN_DEVICE")
    assert caught.value.argument == "ROCMKERN_DEVICE"
    assert "RX 7900 XT (0000:03:00.0, gfx1100, 20.0 GiB)" in str(caught.value)
    assert "780M Graphics (0000:c5:00.0, gfx1103, integrated, 64.0 GiB)" in str(caught.value)


@pytest.mark.parametrize("wanted", [1.0, True, ["0"]])
def test_other_types_are_refused(wanted):
    with pytest.raises(ArgumentTypeError):
        choose_device([rx(0)], wanted)


def test_nothing_to_choose_from():
    with pytest.raises(DeviceUnavailableError):
        choose_device([])
