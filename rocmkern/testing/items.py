"""pytest items of a matrix file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocmkern import matrix
from rocmkern.matrix import Case, CaseFailure, Document, MatrixError, Operation, load_cases, reproduce
from rocmkern.matrix.fuzz import FuzzFailure
from rocmkern.matrix.known import tolerated
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.targets import GPU_TARGETS
from rocmkern.testing import bench, jobs
from rocmkern.testing.devices import chosen_targets, target_reason
from rocmkern.testing.run import CASE_PROPERTY, PROPERTY
from rocmkern.testing.worker import WorkerError

# Where cases are run, not what they run: declarations and faults lie deeper.
_MACHINERY = (Path(jobs.__file__).parent, Path(matrix.__file__).parent)
MARKER_OF_CATEGORY = {"quick": "quick", "full": "full", "benchmark": "benchmark_row"}


class MatrixFile(pytest.File):
    """A matrix file; its items are the cases on the chosen targets."""

    def collect(self) -> Iterator[pytest.Item]:
        """Expand the file; a mistake in it is a collection error with its position."""
        try:
            document, cases = load_cases(self.path)
        except MatrixError as error:
            raise self.CollectError(str(error)) from None
        targets = chosen_targets(self.config)
        if self.config.getoption("rocmkern_fuzz"):
            for operation in document.registry:
                for target in targets if operation.domain is not None else ():
                    yield FuzzItem.of(self, document, operation, target)
            return
        for case in cases:
            for target in targets:
                yield _item(self, case, target)


def category_of(item: pytest.Item) -> str | None:
    """Category of an item of a matrix, None for any other."""
    case = getattr(item, "case", None)
    return case.category if isinstance(case, Case) else None


def _item(parent: MatrixFile, case: Case, target: str) -> pytest.Item:
    name = f"{case.id}[{target}]"
    item: pytest.Item
    if case.category == "benchmark":
        item = BenchmarkItem.from_parent(parent, name=name, callobj=_benchmark_function(case, target))
        if parent.config.pluginmanager.has_plugin("benchmark"):
            replayed = {"timer": jobs.Replay()} if jobs.in_worker(parent.config, target) else {}
            item.add_marker(pytest.mark.benchmark(group=case.operation.name, **replayed))
    else:
        item = CaseItem.from_parent(parent, name=name)
    item.case, item.target = case, target
    item.user_properties.append((CASE_PROPERTY, {"case": case.id, "target": target}))
    item.add_marker(MARKER_OF_CATEGORY[case.category])
    if target in GPU_TARGETS and parent.config.pluginmanager.has_plugin("xdist"):
        # With --dist loadgroup one worker runs all cases of a device; the lock holds with any distribution.
        item.add_marker(pytest.mark.xdist_group(f"rocmkern-{target}"))
    return item


class _Common(pytest.Item):
    """What both kinds of items share: where they stand, when they are skipped, how they fail."""

    case: Case
    target: str

    def skip_unless_usable(self) -> None:
        """Skip with the row's reason, or with the target's."""
        reason = self.case.skip_reason(self.target) or target_reason(self.target)
        if reason:
            pytest.skip(f"{self.target}: {reason}")

    def reportinfo(self) -> tuple[Any, int, str]:
        """Line of the row in the matrix file."""
        return self.path, self.case.facts.line - 1, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What was measured and how to reproduce it; other errors keep their traceback."""
        recipe = f"reproduce with\n\n{reproduce(self.case, self.target)}\n"
        facts = self.case.facts
        head = f"{self.case.id} on {self.target} ({facts.file}:{facts.line}): {facts.why}"
        if isinstance(excinfo.value, CaseFailure):
            return f"{head}\ncheck {excinfo.value.check} failed:\n{excinfo.value}\n\n{recipe}"
        if isinstance(excinfo.value, (MatrixError, DeviceUnavailableError)):
            return f"{head}\n{excinfo.value}"
        if isinstance(excinfo.value, WorkerError):
            return f"{head}\n{excinfo.value}\n\n{recipe}"
        self.add_report_section("call", "case", f"{head}\n{recipe}")
        # From where the case is run: what is around that is pytest's. Of that what is the operation's, if anything is.
        run = excinfo.traceback.cut(path=jobs.__file__)
        excinfo.traceback = run.filter(lambda entry: Path(entry.path).parent not in _MACHINERY) or run
        return super().repr_failure(excinfo)


class CaseItem(_Common):
    """One case on one target: everything that must hold of a call, or that it fails as a rule says."""

    def runtest(self) -> None:
        """Run the case, here or in the worker process."""
        self.skip_unless_usable()
        try:
            record = jobs.do_case(self, self.case, self.target)
        except (Exception, SystemExit) as error:
            pytest.xfail(tolerated(self.case, self.target, error))
        tolerated(self.case, self.target, None)
        self.user_properties.append((PROPERTY, record))


class FuzzItem(pytest.Item):
    """Drawn rows of one operation on one target."""

    document: Document
    operation: Operation
    target: str

    @classmethod
    def of(cls, parent: MatrixFile, document: Document, operation: Operation, target: str) -> FuzzItem:
        """The item of an operation with a domain."""
        item = cls.from_parent(parent, name=f"fuzz-{operation.name}[{target}]")
        item.document, item.operation, item.target = document, operation, target
        return item

    def runtest(self) -> None:
        """Draw and run; the lock of a GPU is held all the while."""
        reason = target_reason(self.target)
        if reason:
            pytest.skip(f"{self.target}: {reason}")
        ran = jobs.do_fuzz(self, self.document, self.operation, self.target)
        seed = self.config.getoption("rocmkern_fuzz_seed")
        self.add_report_section("call", "fuzz", f"{ran} rows, seed {seed}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The smallest row that fails, ready for the table."""
        if isinstance(excinfo.value, FuzzFailure):
            count, seed = self.config.getoption("rocmkern_fuzz"), excinfo.value.seed
            again = f"--rocmkern-fuzz={count} --rocmkern-fuzz-seed={seed} draws it again"
            return f"a drawn row fails on {self.target} ({again}); as a group of the table:\n\n{excinfo.value}"
        if isinstance(excinfo.value, WorkerError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The file."""
        return self.path, 0, self.name


class BenchmarkItem(_Common, pytest.Function):
    """One benchmark row on one target."""

    def setup(self) -> None:
        """Skip before anything is prepared."""
        self.skip_unless_usable()
        super().setup()

    def reportinfo(self) -> tuple[Any, int, str]:
        """Line of the row in the matrix file."""
        return _Common.reportinfo(self)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """As for the other cases."""
        return _Common.repr_failure(self, excinfo, style)


def _benchmark_function(case: Case, target: str) -> Any:
    def run(benchmark: Any, request: pytest.FixtureRequest) -> None:
        speed = jobs.do_benchmark(request.node, benchmark, case, target)
        request.node.user_properties.append((PROPERTY, {"case": case.id, "target": target, "speed": speed}))
        if request.config.getoption("rocmkern_bars"):
            bench.check_bars(speed)

    return run
