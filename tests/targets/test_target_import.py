"""What `import rocmkern` costs."""

from __future__ import annotations

HEAVY = ("numba", "llvmlite", "torch", "pydantic", "yaml", "filelock")


def test_import_loads_nothing_heavy(script):
    code = f"""
import json, sys, time
import numpy
start = time.process_time()
import rocmkern
seconds = time.process_time() - start
loaded = [n for n in ({HEAVY!r} + ("ml_dtypes",)) if n in sys.modules]
for name in rocmkern.__all__:
    getattr(rocmkern, name)
with_names = [n for n in {HEAVY!r} if n in sys.modules]
print(json.dumps([loaded, with_names, seconds]))
"""
    loaded, with_names, seconds = script(code)
    assert loaded == []
    assert with_names == [], "every public name may be had without a compiler"
    assert seconds < 0.2


def test_the_python_target_needs_no_compiler(script):
    code = """
import json, sys
import target_kernels as k
right = k.is_right(k.run(target="python"))
print(json.dumps([right, sorted(n for n in ("numba", "llvmlite") if n in sys.modules)]))
"""
    assert script(code) == [True, []]
