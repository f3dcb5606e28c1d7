"""`make amd-test`: rows of the matrix on a virtual AMD GPU, on a Linux machine without a card, ROCm or root.

    python3 tools/virtual_gpu/amd_test.py [--if-there] [--folder .venv-amd] [arguments of rows.py]

Sets itself up at the first call (`setup.sh`, about a minute): a Python environment with numba-hip and a HIP runtime
that runs machine code on the CPU, and the public emulator of the ISA, cloned at a fixed commit unless ``TINYGRAD``
names a checkout. Nothing of it becomes a part of this project. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EMULATOR = "https://github.com/tinygrad/tinygrad.git"
COMMIT = "a9069c177a9da9cca18593edf55acd2e6073cca6"
#: What the rows need beside numba-hip.
PACKAGES = "pytest-xdist pytest-timeout hypothesis safetensors gguf"


def main(arguments: list[str]) -> int:
    """Set up what is missing, then run `rows.py`."""
    if_there, folder = "--if-there" in arguments, ROOT / ".venv-amd"
    rest = [word for word in arguments if word != "--if-there"]
    if "--folder" in rest:
        at = rest.index("--folder")
        folder = Path(rest[at + 1]).resolve()
        del rest[at : at + 2]
    if if_there and not (os.environ.get("TINYGRAD") and (folder / "run").exists()):
        print(f"SKIPPED: rows on the virtual AMD GPU ({' '.join(rest)}): not set up here; `make amd-test` does it")
        return 0
    if not sys.platform.startswith("linux"):
        print("the virtual AMD GPU needs Linux (x86-64)", file=sys.stderr)
        return 1
    if not (folder / "run").exists() or newest_source() > (folder / "run").stat().st_mtime:
        environment = {**os.environ, "EXTRA_PIP": f"{PACKAGES} {os.environ.get('EXTRA_PIP', '')}"}
        subprocess.run([str(HERE / "setup.sh"), str(folder)], check=True, env=environment)
    emulator = os.environ.get("TINYGRAD") or str(cloned(folder / "emulator"))
    environment = {
        "ROCMKERN_CACHE_DIR": str(folder / "cache"),
        **os.environ,
        "TINYGRAD": emulator,
        # This checkout is tested, and need not be installed.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "VGPU_CACHE": str(folder / "instructions"),
    }
    if "--json" not in rest:
        rest += ["--json", str(folder / "result.json")]
    print(f"emulator: {emulator}, commit {commit_of(emulator)}; known to work: {COMMIT}", flush=True)
    return subprocess.run([str(folder / "run"), "python", str(HERE / "rows.py"), *rest], env=environment).returncode


def newest_source() -> float:
    """When what `setup.sh` builds from changed last."""
    return max((HERE / name).stat().st_mtime for name in ("setup.sh", "pip_tree.py", "vgpu_hip.c"))


def commit_of(folder: str) -> str:
    """The commit that is checked out there."""
    command = ["git", "-c", "safe.directory=*", "-C", folder, "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def cloned(folder: Path) -> Path:
    """The emulator's repository at the commit that this is known to work with."""
    if not (folder / "test" / "mockgpu" / "amd").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for words in (["init", "--quiet"], ["fetch", "--quiet", "--depth", "1", EMULATOR, COMMIT]):
            subprocess.run(["git", *words], check=True, cwd=folder)
        subprocess.run(["git", "checkout", "--quiet", "FETCH_HEAD"], check=True, cwd=folder)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
