"""The command line: finding commands, exit statuses, errors without tracebacks."""

import argparse
import os
import subprocess
import sys

import pytest

from rocmkern import cli
from rocmkern.runtime.errors import ArgumentError, TargetError


class _Command:
    """A module of a command, as far as the command line looks at it."""

    SUMMARY = "fails or succeeds"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--fail", action="store_true")
        parser.add_argument("--dry", action="store_true")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.fail:
            raise ArgumentError("color", "green", "red or blue")
        if arguments.dry:
            raise TargetError("the paint is dry")
        return 7


@pytest.fixture
def one_command(monkeypatch):
    monkeypatch.setattr(cli, "commands", lambda: {"paint": _Command()})


def test_doctor_is_a_command_and_private_modules_are_none():
    found = cli.commands()
    assert "doctor" in found
    assert not any(name.startswith("_") for name in found)


def test_every_command_has_a_summary_and_can_print_its_help(capsys):
    for name, module in cli.commands().items():
        assert module.SUMMARY
        with pytest.raises(SystemExit) as stop:
            cli.main([name, "--help"])
        assert stop.value.code == 0
        assert f"rocmkern {name}" in capsys.readouterr().out


def test_the_exit_status_is_the_commands(one_command):
    assert cli.main(["paint"]) == 7


def test_an_argument_that_is_refused_is_one_message_and_status_2(one_command, capsys):
    assert cli.main(["paint", "--fail"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "rocmkern: color: got green; allowed: red or blue\n"


def test_another_error_of_the_library_is_one_message_and_status_1(one_command, capsys):
    assert cli.main(["paint", "--dry"]) == 1
    assert capsys.readouterr() == ("", "rocmkern: the paint is dry\n")


@pytest.mark.parametrize("words", [[], ["paint", "--colour"], ["dance"]])
def test_words_that_make_no_sense_are_a_usage_error(one_command, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("rocmkern") and error.endswith("--help)\n") and error.count("\n") == 1


def test_python_m_rocmkern_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "rocmkern", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("rocmkern ")


def test_the_list_of_commands_needs_no_compiler():
    code = (
        "import sys; from rocmkern.cli import build_parser; build_parser(); "
        "print([m for m in ('numba', 'torch', 'pydantic', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reader_who_stops_reading_causes_no_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "rocmkern", "doctor"],
        env={**os.environ, "ROCMKERN_QUIET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
