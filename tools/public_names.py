"""Write rocmkern/__init__.pyi: where each public name comes from. Type checkers read it, and `rocmkern` itself.

    python tools/public_names.py            # write it
    python tools/public_names.py --check    # exit status 1 where it is not what would be written

Operations are public functions of `rocmkern/ops/*/api.py` and `rocmkern/ops/*/backward/api.py`, those decorated with
``planned`` or ``unplanned``; the other names are listed here.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rocmkern"
STUB = PACKAGE / "__init__.pyi"
DECORATORS = {"planned", "unplanned"}
SUBMODULES = ("distributed", "flash_attn", "reference", "tile", "torch", "transformers")
OTHERS = {
    "rocmkern.calls.invariance": ("batch_invariant",),
    "rocmkern.checkpoint": ("Checkpoint", "FileTensor", "open_checkpoint"),
    "rocmkern.ops.rotary.scaling": ("LinearScaling", "Llama3Scaling", "YarnScaling"),
    "rocmkern.runtime.errors": (
        "ArgumentError", "ArgumentTypeError", "CheckpointError", "ClosedError", "DeadlineError", "DeviceMemoryError",
        "DeviceUnavailableError", "GuardBandError", "IndexOutOfRangeError", "LeakError", "MatrixError",
        "OutOfBlocksError", "PeerError", "RocmkernError", "TargetError", "TileError",
    ),
    "rocmkern.runtime.kv_cache": ("KVCache",),
    "rocmkern.runtime.manager": ("DeviceTensor", "ResourceManager", "default_manager"),
    "rocmkern.runtime.probe.status": ("gpu_available", "gpu_status", "require_gpu"),
    "rocmkern.targets": ("TargetInfo", "target", "use", "using"),
}  # fmt: skip


def operations(path: Path) -> list[str]:
    """Names of the public operations of a file, in alphabetical order."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return sorted(
        {f.name for f in functions for d in f.decorator_list if isinstance(d, ast.Name) and d.id in DECORATORS}
    )


def homes() -> dict[str, tuple[str, ...]]:
    """The public names of each module, modules in alphabetical order."""
    paths = [*PACKAGE.glob("ops/*/api.py"), *PACKAGE.glob("ops/*/backward/api.py")]
    families = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): tuple(operations(p)) for p in paths}
    return dict(sorted({**families, **OTHERS}.items()))


def stub() -> str:
    """The text of the stub."""
    lines = ['"""Where the public names come from: written by tools/public_names.py."""', ""]
    lines += [f"from rocmkern import {name} as {name}" for name in SUBMODULES]
    lines += [f"from {module} import {name} as {name}" for module, names in homes().items() for name in names]
    return "\n".join([*lines, "", "__version__: str", ""])


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        stale = STUB.read_text() != stub()
        if stale:
            print(f"{STUB.name} is not what it should be: python tools/public_names.py")
        return int(stale)
    STUB.write_text(stub())
    return 0


if __name__ == "__main__":
    sys.exit(main())
