"""A device on which work hung is refused by name, in every process, until it has answered."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rocmkern.runtime import devices
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.runtime.probe import status as probe
from rocmkern.runtime.probe import suspect

CARD = DeviceInfo("hip", 0, "RX 7900 XT", "0000:03:00.0", False, 1 << 34, "gfx1100")
OTHER = replace(CARD, index=1, pci_id="0000:0c:00.0")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory of its own for marks."""
    monkeypatch.setattr(suspect, "lock_directory", lambda: tmp_path)
    return tmp_path


def test_a_marked_device_is_refused_with_what_happened_and_what_to_do(place):
    suspect.mark(CARD, "flash_attention did not finish within 5 s")
    with pytest.raises(DeviceUnavailableError) as caught:
        suspect.check(CARD)
    for words in ("hip:0 RX 7900 XT", "is suspect since", "flash_attention did not finish", "rocmkern doctor"):
        assert words in str(caught.value)
    suspect.check(OTHER)


def test_it_is_refused_before_the_driver_is_touched(place, monkeypatch):
    monkeypatch.setattr(devices, "make_device", lambda info: pytest.fail("the driver was touched"))
    suspect.mark(CARD, "it hung")
    with pytest.raises(DeviceUnavailableError, match="it hung"):
        devices.open_device(CARD)


def test_the_automatic_choice_says_so(place, monkeypatch):
    monkeypatch.setattr(probe, "probe", lambda refresh: probe.GpuStatus(True, "using it", (), (CARD,), CARD))
    monkeypatch.setattr(probe, "_found", {})
    suspect.mark(CARD, "it hung")
    status = probe.gpu_status()
    assert not status.available and status.chosen is None and "it hung" in status.reason and status.checks
    suspect.clear(CARD)
    monkeypatch.setattr(probe, "_found", {})
    assert probe.gpu_status().chosen == CARD


def test_a_new_look_clears_the_mark_or_renews_it(place):
    first = suspect.mark(CARD, "it hung")
    assert suspect.look_again(first, look=lambda device: "still silent") == "still silent"
    assert suspect.suspicion_of(CARD).reason == "still silent"
    assert suspect.look_again(first, look=lambda device: None) is None
    assert suspect.suspicion_of(CARD) is None
    suspect.check(CARD)


@pytest.mark.parametrize("answer", [None, "still silent"])
def test_an_old_mark_is_looked_into_before_it_is_believed(place, answer):
    mark = suspect.mark(CARD, "it hung")
    looked = []

    def look(device):
        looked.append(device)
        return answer

    with pytest.raises(DeviceUnavailableError, match="it hung"):
        suspect.check(CARD, look=look, now=lambda: mark.time + suspect.LIFETIME_S - 1)
    assert not looked, "young marks are believed"
    if answer is None:
        suspect.check(CARD, look=look, now=lambda: mark.time + suspect.LIFETIME_S + 1)
        assert suspect.suspicions() == []
    else:
        with pytest.raises(DeviceUnavailableError, match="still silent"):
            suspect.check(CARD, look=look, now=lambda: mark.time + suspect.LIFETIME_S + 1)
    assert looked == [CARD]


def test_marks_are_those_of_this_start_of_the_machine(place, monkeypatch):
    suspect.mark(CARD, "it hung")
    suspect.mark(OTHER, "it hung too")
    assert {suspicion.device for suspicion in suspect.suspicions()} == {CARD, OTHER}
    monkeypatch.setattr(suspect, "boot_id", lambda: "another")
    assert suspect.suspicions() == []
    suspect.check(CARD)


def test_the_start_of_the_machine_has_a_name(tmp_path):
    assert suspect.boot_id(tmp_path) == "this-boot"
    path = tmp_path / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("0b8e-11\n")
    assert suspect.boot_id(tmp_path) == "0b8e-11"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": {}}', '{"device": null, "reason": "", "time": 0}'])
def test_a_file_that_is_no_mark_means_nothing(place, text):
    suspect.mark(CARD, "it hung")
    (path,) = place.iterdir()
    path.write_text(text)
    suspect.check(CARD)
    assert suspect.suspicions() == []


def test_other_processes_see_the_mark(place, tmp_path):
    code = """
        from rocmkern.runtime.probe import suspect
        from rocmkern.runtime.device import DeviceInfo
        print([str(suspicion) for suspicion in suspect.suspicions()])
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    (tmp_path / "rocmkern-locks").mkdir()
    suspect.mark(CARD, "it hung", directory=tmp_path / "rocmkern-locks")
    program = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert "is suspect since" in done.stdout and "it hung" in done.stdout, done.stderr


def test_a_look_at_a_device_that_is_not_there_fails_with_words(monkeypatch):
    failure = suspect.exercise(replace(CARD, index=63, pci_id="00ff:ff:1f.0"))
    assert "filling and copying memory failed with status 1" in failure


def test_a_look_that_takes_too_long_is_given_up():
    assert "within 0.01 s" in suspect.exercise(CARD, timeout_s=0.01)
