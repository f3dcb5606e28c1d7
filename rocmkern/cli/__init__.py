"""The command line: ``rocmkern COMMAND`` or ``python -m rocmkern COMMAND``.

A command is one module of this package, named after the command, with three names::

    SUMMARY = "one line for the list of commands"
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(arguments: argparse.Namespace) -> int: ...     # the exit status

Nothing else is registered anywhere. The modules are imported for every call: what is slow to import belongs in `run`.
An error of this library that `run` lets through is printed as one message, without a traceback, with exit status 1; or
2 where it is of an argument, as for words that make no sense to the parser.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from rocmkern import __version__
from rocmkern.runtime.errors import ArgumentError, RocmkernError

__all__ = ["build_parser", "commands", "main"]


class _Parser(argparse.ArgumentParser):
    """A parser, and those of its commands, that says in one line what it does not understand."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def commands() -> dict[str, ModuleType]:
    """The modules of the commands by name, in alphabetical order; modules with a leading underscore are no commands."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``arguments.run`` is the function of the command that was named."""
    parser = _Parser(prog="rocmkern", description="Attention kernels in Python: tools.")
    parser.add_argument("--version", action="version", version=f"rocmkern {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in commands().items():
        subparser = subparsers.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        subparser.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The words after the program's name; those of this process by default.

    Returns
    -------
    int
        0 for success, 1 where the command failed, 2 where the words make no sense (through SystemExit), or a value.
    """
    arguments = build_parser().parse_args(argv)
    # As with `python -m`: the modules that a matrix file names may lie here.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except RocmkernError as error:
        print(f"rocmkern: {error}", file=sys.stderr)
        return 2 if isinstance(error, ArgumentError) else 1
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has seen enough. What is still in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
