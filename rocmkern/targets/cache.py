"""Where compiled kernels live on disk.

``ROCMKERN_CACHE_DIR``, else ``$XDG_CACHE_HOME/rocmkern``, else ``~/.cache/rocmkern``. Files are written under a
temporary name and renamed, so that several processes may compile the same variant at once: the last one wins, with
equal contents. Where no directory can be written, or what lies there is damaged, modules are loaded from memory and
compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
import types
from pathlib import Path

from rocmkern.runtime.errors import RocmkernError


def cache_directory() -> Path:
    """The directory that is used if it can be written."""
    explicit = os.environ.get("ROCMKERN_CACHE_DIR")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rocmkern"


#: Modification time of every module (2020-01-01). Numba drops what it compiled from a file with another time, but here
#: the name says what a file holds: two processes that write the same module must not undo each other's work.
MODIFIED = 1577836800


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.utime(temporary, (MODIFIED, MODIFIED))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _usable(directory: Path) -> bool:
    """Whether numba can keep its index beside a module in this directory."""
    try:
        pycache = directory / "__pycache__"
        pycache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK) and os.access(pycache, os.W_OK | os.X_OK)


def load_module(name: str, text: str) -> types.ModuleType:
    """Load generated text as a module, from the cache directory if possible.

    Parameters
    ----------
    name : str
        Readable part of the module's name; the hash of ``text`` is added.
    text : str
        The module. ``CACHED`` is set in its namespace before it runs: whether numba may cache on disk.
    """
    full_name = f"rocmkern_{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    directory = cache_directory()
    path = directory / f"{full_name}.py"
    module = None
    if _usable(directory) and _written(path, text):
        try:
            module = _from_file(full_name, path)
        except _errors_of_the_kernel():
            raise
        except Exception:
            # A damaged or full cache must not stop the program.
            _discard(path)
    if module is None:
        module = types.ModuleType(full_name)
        module.CACHED = False  # type: ignore[attr-defined]
        exec(compile(text, f"<{full_name}>", "exec"), module.__dict__)
    sys.modules[full_name] = module
    return module


def _written(path: Path, text: str) -> bool:
    """Whether the file holds the text, now or already."""
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
    except (OSError, UnicodeDecodeError):
        return False
    return True


def _from_file(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.CACHED = True  # type: ignore[attr-defined]
    sys.modules[name] = module  # numba asks for it while it compiles
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _errors_of_the_kernel() -> tuple[type[Exception], ...]:
    """What compiling again would raise again."""
    from numba.core.errors import NumbaError

    return NumbaError, RocmkernError


def _discard(path: Path) -> None:
    """Remove what numba keeps beside a module."""
    for file in (path.parent / "__pycache__").glob(f"{path.stem}*.nb[ci]"):
        with contextlib.suppress(OSError):
            file.unlink()
