"""Where compiled kernels live on disk.

``ROCMKERN_CACHE_DIR``, else ``$XDG_CACHE_HOME/rocmkern``, else ``~/.cache/rocmkern``. Files are written under a
temporary name and renamed, so that several processes may compile the same variant at once: the last one wins, with
equal contents. Where no directory can be written, modules are loaded from memory and compiled again in each process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import types
from pathlib import Path


def cache_directory() -> Path:
    """The directory that is used if it can be written."""
    explicit = os.environ.get("ROCMKERN_CACHE_DIR")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rocmkern"


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
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
    cached = _usable(directory)
    if cached and not path.exists():
        try:
            write_atomically(path, text)
        except OSError:
            cached = False
    if cached:
        spec = importlib.util.spec_from_file_location(full_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.CACHED = True  # type: ignore[attr-defined]
        sys.modules[full_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[full_name]
            raise
        return module
    module = types.ModuleType(full_name)
    module.CACHED = False  # type: ignore[attr-defined]
    exec(compile(text, f"<{full_name}>", "exec"), module.__dict__)
    sys.modules[full_name] = module
    return module
