"""Run Liger-Kernel's own tests, forward and backward, against this library.

    python tools/liger_tests.py PATH --device cuda --rows 400 --seed 1
    python tools/liger_tests.py PATH --device cpu --rows 100 --seed 1 --most 20000000

PATH is a checkout of linkedin/Liger-Kernel; nothing is fetched and nothing is written there. `COMMIT` is the one that
this was written for, whose files have the checksums of `FILES`; other files are run too, and the report says so.
PyTorch, Transformers and pytest are needed, Triton is not.

pytest runs the files as they are, with these changes:

* ``liger_kernel`` is what `liger_modules` makes of our operations. A test's name, parameters and tolerances are its
  own.
* Tables of cosine and sine are those of exact angles: theirs are of angles in float32, which ours are compared with.
* GEGLU in bfloat16 is judged by the tests' second measure, that for NPUs: against float32, no more than twice the error
  of PyTorch. The first one is 1e-2 beside sums of 1e5, which wants each rounding in between alike.
* Classes have no weights: rows of a loss that have them with all other options are run without them.
* On the CPU bfloat16 is run as on a card.

Of all sets of parameters of a test, those that need what we do not have are left out, with the reason; of the others a
sample is drawn with a seed, from each test as many as from the others. ``--most`` leaves out those whose sizes multiply
to more.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import drawn_tests
import pytest

COMMIT = "ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c"
FILES = {
    "test/transformers/test_rms_norm.py": "cc85c7554a2df96d0a3c29615ded79ccfdce3bddb729da6eaac41fb5963869b5",
    "test/transformers/test_layer_norm.py": "153a373fc38b7bac3d98bc87ba6eff6dcda3194cd5d6976c7259b4b5623ca726",
    "test/transformers/test_fused_add_rms_norm.py": "f56ca555be37adc9031947ba3c80ab658fbcb407b7d8bc0de8d8287e3434ecac",
    "test/transformers/test_rope.py": "1102777171048f2f7a44d178ed86d295014ad860e20eacbcb86f3f2fad31196e",
    "test/transformers/test_softmax.py": "9044fba3b38c942d504a8680143db58f2bf19b94faa8320bf0cf6dc7751123d1",
    "test/transformers/test_swiglu.py": "8ee8dee663152a1c35020c60899e1a714656a7ecfa9d36400f7bb4b8d72d45f0",
    "test/transformers/test_geglu.py": "aa4dda2200b41b7958922996d2eeabcd0d1fd78bc529297fb75ab8b0d7653689",
    "test/transformers/test_fused_linear_cross_entropy.py": (
        "e5e1ff4b2e99f4a7cd0e45eadfa065b368ac6cb5cc4a5fd30fc3390ba9cfa8dc"
    ),
    "test/transformers/test_cross_entropy.py": "26ad4d93f593e2155bc73efd952e948bd60c803e6a69fd212c344dfaaaa5ddee",
    "test/conftest.py": "26362c418e405a97ef81ae61eedc73ef85be4f57811216416e0cec39592700d7",
    "test/utils.py": "3694b547b63d23b9b42db67d87c31efca8b3faef4ccf8851fa2d4b978529daff",
}
_RANKS = "a tensor over several ranks"
#: Tests that are left out, and why.
LEFT_OUT = {
    "test_dtensor_rms_norm": _RANKS,
    "test_dtensor_liger_silumul": _RANKS,
    "test_swiglu_blackwell_tiled_matches_original": "sets a private switch of their kernel",
    "test_correctness_mixtralblocksparsetop2mlp": "for Transformers before 5",
    "test_correctness_with_predicted_tokens": "predicted tokens",
}
#: Their reference is further from the numbers on the CPU than the test allows.
SUMMED_IN_HALVES = ("test_liger_layer_norm",)
_PREDICTIONS = ("return_token_accuracy", "return_predicted_tokens")


class Chosen:
    """What is run of the files, and what came of it: a plugin of pytest.

    Attributes
    ----------
    outcomes : dict
        By the name of a test, how many sets of parameters came to what.
    left_out : Counter
        How many were not drawn from, for which reason.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.end = options, math.inf
        self.outcomes: dict[str, Counter[str]] = {}
        self.left_out, self.changed, self.drawn = Counter[str](), Counter[str](), 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Draw a sample."""
        tests: dict[str, list[Any]] = {}
        for item in items:
            reason = self._reason_against(item)
            self.left_out.update([reason] if reason else [])
            if not reason and self.options.test in _name(item):
                tests.setdefault(_name(item), []).append(item)
        items[:] = drawn_tests.drawn(tests.values(), self.options.seed, self.options.rows)
        self.drawn = len(items)
        self.changed.update("without class weights" for item in items if self._without_weights(item))
        for module in {item.module for item in items if hasattr(item.module, "_test_correctness_quack_method")}:
            _measure_halves_against_float32(module)
        self.end = time.monotonic() + (self.options.seconds or math.inf)

    def _reason_against(self, item: Any) -> str | None:
        """Why a set of parameters is left out."""
        name, row = item.originalname, getattr(item, "callspec", None)
        if name in LEFT_OUT:
            return LEFT_OUT[name]
        parameters: dict[str, Any] = row.params if row else {}
        if name in SUMMED_IN_HALVES and self.options.device == "cpu" and "bfloat16" in str(parameters["dtype"]):
            return "PyTorch on the CPU sums gradients of weights in bfloat16"
        if any(parameters.get(option) for option in _PREDICTIONS):
            return "predicted tokens"
        if parameters.get("ce_weight"):
            return "class weights"
        if parameters.get("head_dim", 0) % 2:
            return "an odd head dimension"
        sizes = [n for n in parameters.values() if isinstance(n, int) and n > 0]
        if self.options.most and math.prod(sizes) > self.options.most:
            return f"sizes that multiply to more than {self.options.most}"
        return None

    @staticmethod
    def _without_weights(item: Any) -> bool:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        return bool(parameters.get("has_ce_weight")) and not parameters.update(has_ce_weight=False)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Begin none after the time."""
        if time.monotonic() > self.end:
            pytest.skip("not begun, for the time")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Count."""
        report = yield
        if report.when == "call" or (report.when == "setup" and not report.passed):
            outcome = "skipped by itself" if report.skipped else report.outcome
            if report.skipped and "not begun" in str(report.longrepr):
                outcome = "not begun, for the time"
            self.outcomes.setdefault(_name(item), Counter())[outcome] += 1
        return report

    def report(self) -> int:
        """Print it; 1 where a test failed, or none was run."""
        notes = {"left out": self.left_out, "run": self.changed}
        total = drawn_tests.report(self.options, self.drawn, self.outcomes, notes)
        return 0 if total["passed"] and not total["failed"] else 1


def _name(item: Any) -> str:
    return f"{item.path.stem}::{item.originalname}"


def _measure_halves_against_float32(module: Any) -> None:
    """Let the tests of GEGLU judge bfloat16 as they do on NPUs."""
    import torch

    direct = module._test_correctness_direct

    def chosen(*args: Any) -> None:
        *sizes, dtype, _, _ = args
        module._test_correctness_quack_method(*sizes) if dtype is torch.bfloat16 else direct(*args)

    module._test_correctness_direct = chosen


def other_files(checkout: Path, files: Iterable[str]) -> list[str]:
    """Files of a checkout that are not those of `COMMIT`."""
    return [n for n in files if hashlib.sha256((checkout / n).read_bytes()).hexdigest() != FILES.get(n)]


def prepare(checkout: Path, device: str) -> None:
    """Let the tests import what they are to test."""
    from liger_modules import make_tables_exact, stand_ins

    sys.dont_write_bytecode = True
    sys.path.insert(0, str(checkout))  # their ``test`` goes before Python's
    sys.modules.update(stand_ins(device))
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # they ask PyTorch for the same bits
    else:
        import test.utils

        test.utils.supports_bfloat16 = lambda: True
    make_tables_exact()


def main() -> int:
    """Draw, run, report; 1 where a test fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of Liger-Kernel")
    drawn_tests.add_arguments(parser, 400)
    parser.add_argument("--most", type=int, default=0, help="largest product of sizes (default: any)")
    options = parser.parse_args()
    tests = [name for name in FILES if Path(name).name.startswith("test_") and "test_cross_entropy" not in name]
    others = other_files(options.checkout, FILES)
    if others:
        print(f"other files than those of commit {COMMIT}: {', '.join(others)}")
    checkout = options.checkout.resolve()
    prepare(checkout, options.device)
    chosen = Chosen(options)
    given = ["-q", "--tb=short", "--no-header", "--disable-warnings", "-p", "no:cacheprovider"]
    given += ["-c", os.devnull, "--rootdir", str(checkout)]
    code = pytest.main([*given, *(str(checkout / name) for name in tests)], plugins=[chosen])
    return chosen.report() or int(code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED))


if __name__ == "__main__":
    sys.exit(main())
