"""Texts of a report say nothing of who made it: no name of a user or a host, no path."""

from __future__ import annotations

import os
import socket

import pytest

from rocmkern.cli._anonymous import Anonymizer


@pytest.fixture
def anonymizer():
    folders = ["/home/ada", "/srv/big disk/kernel work"]
    return Anonymizer(["ada"], ["lovelace.example.org"], folders, ["home", "opt", "usr", "srv", "tmp"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/home/ada/lib/python3.12/rocmkern/targets/hip.py", line 5', 'File "<path>/hip.py", line 5'),
        ("HIP 6.3 (/opt/rocm-6.3/lib/libamdhip64.so.6.3)", "HIP 6.3 (<path>/libamdhip64.so.6.3)"),
        ("of /srv/big disk/kernel work/run.py: no", "of <path>/run.py: no"),
        ("of /srv/big disk/kernel work: no", "of <path>: no"),
        ("a file in /unheard/of/folder.", "a file in <path>."),
        ("PATH=/opt/a:/usr/bin", "PATH=<path>:<path>"),
        ("-I/usr/include/x.h", "-I<path>/x.h"),
        ("look: `ls /opt/rocm`, `/opt/rocm/bin/tool -x`", "look: `ls <path>`, `<path> -x`"),
        ("~/models and ~ada/models", "<path> and <path>"),
        (r"C:\Users\Ada\kernel.py and \\LOVELACE\share\x", "<path>/kernel.py and <path>"),
        ("Ada asked lovelace, LOVELACE.example.org and ada_2", "<user> asked <host>, <host> and <user>_2"),
        ("adapter of a lovelaces", "adapter of a lovelaces"),
        ("1.3 GB/s of f16/bf16, and/or https://rocm.docs.amd.com/projects", None),
        ("sum(p * |v|) / n, error 3/4, check 'a/b'", None),
        ("`rocmkern doctor` looks; --rocmkern-deadline <path>", None),
    ],
)
def test_names_and_paths_go_and_the_rest_stays(anonymizer, text, expected):
    assert anonymizer.text(text) == (text if expected is None else expected)


def test_all_texts_of_data_are_changed_and_numbers_stay(anonymizer):
    data = {"ada": [1, 2.5, None, True, ("/tmp/x", {"at": "/home/ada/y.py"})]}
    assert anonymizer.data(data) == {"<user>": [1, 2.5, None, True, ["<path>", {"at": "<path>/y.py"}]]}


def test_a_name_that_is_nobodys_stays():
    assert Anonymizer(["root", ""], ["localhost"], [""]).text("the root of localhost") == "the root of localhost"


def test_this_machines_names_and_folders_are_known(monkeypatch, tmp_path):
    home = tmp_path / "grace hopper"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("LOGNAME", "ghopper")
    monkeypatch.chdir(tmp_path)
    text = f"{home}/a b {tmp_path}/c {__file__} ghopper {socket.gethostname()} {os.getcwd()}"
    shown = Anonymizer.of_this_machine().text(text)
    assert shown.startswith("<path> b <path> <path>/test_anonymous.py <user> ")
    assert "grace" not in shown and str(tmp_path) not in shown and shown.endswith("<path>")
