"""Start processes whose first call is made by several threads at once, and count those that fail.

    python tools/first_calls.py --starts 500 --threads 8          # with a full cache
    python tools/first_calls.py --starts 20 --empty               # each with an empty cache

Each process must have one target object, compile the kernel at most once, and give every thread the same right result.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import threading
import numpy as np
import rocmkern
from rocmkern import reference

threads = {threads}
x = np.random.default_rng(0).standard_normal((20, 63), dtype=np.float32)
start, results, errors, targets = threading.Barrier(threads), [], [], []

def work():
    start.wait()
    try:
        results.append(rocmkern.softmax(x))
        from rocmkern.targets import current_target
        targets.append(current_target())
    except BaseException as error:
        errors.append(error)

workers = [threading.Thread(target=work) for _ in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert not errors, errors
assert len(results) == threads and len(set(map(id, targets))) == 1
from rocmkern.targets import cpu
assert cpu.compiled() <= 1, cpu.compiled()
for result in results:
    np.testing.assert_array_equal(result, results[0])
np.testing.assert_allclose(results[0], reference.softmax(x), rtol=1e-5, atol=1e-6)
"""


def main() -> int:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=500, metavar="N")
    parser.add_argument("--threads", type=int, default=8, metavar="N")
    parser.add_argument("--empty", action="store_true", help="an empty cache for each, instead of one for all")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        for number in range(arguments.starts):
            cache = os.path.join(root, str(number) if arguments.empty else "all")
            environment = {**os.environ, "ROCMKERN_TARGET": "cpu", "ROCMKERN_CACHE_DIR": cache, "ROCMKERN_QUIET": "1"}
            program = PROGRAM.format(threads=arguments.threads)
            done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
            if done.returncode or done.stderr:
                failed += 1
                print(f"start {number}: status {done.returncode}\n{done.stderr}")
    print(f"{arguments.starts} starts of {arguments.threads} threads: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
