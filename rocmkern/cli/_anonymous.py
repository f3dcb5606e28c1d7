"""Texts without what they say of their author: names of users and hosts, and paths.

    /home/ada/lib/python3.12/rocmkern/targets/hip.py   ->  <path>/hip.py      a file of code keeps its name
    /home/ada/models                                    ->  <path>
    ada, ada-laptop                                     ->  <user>, <host>

A name counts where it stands as a word of its own, whatever its case. A path counts where it is absolute: by its first
folder, if that is one of this machine, else where a slash begins a word; folders that are known to be this user's are
replaced as they are, blanks in them included. `root` and `localhost` are nobody's names, and a machine called `gpu`
cannot be told from what a report says of every GPU: such words stay.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_NOBODY = {
    "",
    *[
        "root",
        "user",
        "local",
        "localhost",
        "localdomain",
        "cpu",
        "gpu",
        "hip",
        "cuda",
        "amd",
        "rocm",
        "rocmkern",
        "numba",
        "torch",
        "python",
        "linux",
    ],
}
_FILE_OF_CODE = re.compile(r"[\w.+-]*\.(py|so[.\d]*|yaml|c|h|dll|json)")
_IN_A_PATH = r"[^\s`'\"<>|:,;()\[\]{}]"


class Anonymizer:
    """Takes names and paths out of texts.

    Parameters
    ----------
    users, hosts : iterable of str
        Names.
    folders : iterable of str
        Paths that may have blanks in them.
    top : iterable of str
        Names of the folders right below the root of the file system.
    """

    def __init__(self, users: Iterable[str], hosts: Iterable[str], folders: Iterable[str], top: Iterable[str] = ()):
        # The longest first: one may be a part of another.
        self._folders = sorted({each.rstrip("/\\") for each in folders} - {""}, key=len, reverse=True)
        self._names = [(_as_word(name), "<host>") for name in _parts(hosts)]
        self._names += [(_as_word(name), "<user>") for name in _parts(users)]
        first = "|".join(re.escape(name) for name in sorted(top, key=len, reverse=True)) or "(?!)"
        self._path = re.compile(
            rf"/(?:{first})(?:/{_IN_A_PATH}*)+"  # of this machine, wherever it stands
            rf"|(?<![\w.:/<>~$%*)\]-])/{_IN_A_PATH}+"  # where a word begins
            rf"|(?<![\w:])~\w*/{_IN_A_PATH}*"
            rf"|\b[A-Za-z]:[\\/]{_IN_A_PATH}+"
            rf"|\\\\[\w.-]+\\{_IN_A_PATH}+"
        )

    @classmethod
    def of_this_machine(cls) -> Anonymizer:
        """What is known here: the user, the host, home, working, temporary and Python's own folders."""
        home = os.path.expanduser("~")
        names = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
        with contextlib.suppress(OSError, KeyError, ImportError):  # a container whose user has no name
            names.append(getpass.getuser())
        hosts = [platform.node(), socket.gethostname(), *(os.environ.get(n, "") for n in ("HOSTNAME", "COMPUTERNAME"))]
        package = Path(__file__).resolve().parents[2]
        folders = [home, os.getcwd(), tempfile.gettempdir(), sys.prefix, sys.base_prefix, str(package)]
        folders += [os.environ.get(name, "") for name in ("ROCMKERN_CACHE_DIR", "XDG_CACHE_HOME", "VIRTUAL_ENV")]
        try:
            top = [entry.name for entry in os.scandir("/")]
        except OSError:
            top = []
        kept = (folder for folder in folders if len(Path(folder).parts) > 1)
        return cls([*names, Path(home).name], hosts, kept, top)

    def text(self, text: str) -> str:
        """A text without names and paths."""
        for folder in self._folders:
            # What follows the folder is a part of the path; it goes in the next step.
            text = text.replace(folder, "/<known>")
        text = re.sub(rf"/<known>(?:[/\\]{_IN_A_PATH}*)*", lambda found: _shown(found[0]), text)
        text = self._path.sub(lambda found: _shown(found[0]), text)
        for name, replacement in self._names:
            text = name.sub(replacement, text)
        return text

    def data(self, data: Any) -> Any:
        """What JSON has, with all of its texts changed; keys too."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {self.text(str(key)): self.data(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.data(value) for value in data]
        return data


def _parts(names: Iterable[str]) -> list[str]:
    """Names and, of a host's full name, its first part; the longest first."""
    found = {part.lower() for name in names for part in (name, name.partition(".")[0])}
    return sorted(found - _NOBODY, key=len, reverse=True)


def _as_word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE)


def _shown(path: str) -> str:
    """What stays of a path: the name of a file of code."""
    end = re.search(r"[.,;!?]*$", path)
    name = re.split(r"[/\\]", path[: end.start()] if end else path)[-1]
    tail = end[0] if end else ""
    return f"<path>/{name}{tail}" if _FILE_OF_CODE.fullmatch(name) else f"<path>{tail}"
