"""The report of a machine and its card: everything that is worth knowing of a first run, in one file of JSON.

::

    card_report   1, the format of this file
    complete      false in a file that a run left behind which was ended
    seconds       since the start, when the file was written
    privacy       what was taken out of the texts
    system        versions of the kernel and the card's driver
    doctor        what `rocmkern doctor --json` says, without the names of files
    target        what the rows ran on
    sensors       clocks, temperature and power: before, after the rows, after the benchmarks, during each benchmark
    run           environment and results, as files of pytest --rocmkern-json have them
    code          of each piece of machine code that ran, by the sha256 of the bytes that the driver was given: the
                  kernel, the hash that does not depend on the linker, registers
    code_sha256   one hash of all the latter
    counts        rows and benchmarks by outcome, errors by kind
    errors        each with its full text

Doctor, rows and benchmarks run in processes of their own with a deadline: what hangs, crashes or fails there is an
error in the report, and the rest goes on. After a hang the card must answer before it is used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rocmkern.cli import _sensors
from rocmkern.cli._anonymous import Anonymizer
from rocmkern.matrix import Case, CaseFailure
from rocmkern.matrix.known import tolerated
from rocmkern.matrix.results import MeasuredDevice, Run, as_data, environment_of, labels_of, result_of
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.directories import read_plain_file
from rocmkern.runtime.errors import RocmkernError
from rocmkern.runtime.probe import suspect
from rocmkern.targets import GPU_TARGETS
from rocmkern.testing.worker import DEFAULT_DEADLINE_S, Worker, WorkerError

FORMAT = 1
PRIVACY = (
    "names of users and hosts and all paths were taken out of every text of this file; nothing was sent anywhere: "
    "look at it, then send it if you like"
)
#: In the order in which they run: each family of kernels once where a card's memory or matrix unit is the limit.
BENCHMARKS = (
    "flash_attention-speed_of_models-llama3_8b-b1h32kv8s2048d128-bf16-causal",
    "flash_attention-speed-b2h16s2048d64-bf16",
    "decode_attention-speed_of_decoding-llama3_8b-b8h32kv8k512d128-bf16",
    "paged_attention-speed_of_pages-cards-h32kv8k32768d128-f16",
    "matmul-speed_of_products-square-m4096n4096k4096-f16",
    "linear-speed_of_linear_layers-llama3_8b-n4096k4096-f16",
    "quantized_linear-speed_of_quantized_layers-wide-n28672b256-f16",
    "mlp-speed_of_mlp-llama3_8b-m16k4096h14336-f16",
    "rms_norm-speed_of_norms-llama3_8b-n2048x4096-bf16",
    "softmax-speed_of_steps-n4096x4096-f32",
)
DOCTOR_S = 900.0
BENCHMARK_S = 300.0
#: Rows that hang or crash before the others are given up: each may have cost the machine's display.
MOST_LOST = 10
_MOST_TEXT = 6000
_SAMPLE_S = 1.0
_MOST_SAMPLES = 30
#: A file is written again after so many seconds.
_WRITE_S = 10.0

Say = Callable[[str], None]


class CardReport:
    """Collects a report, and writes the file again as it grows.

    Parameters
    ----------
    path : Path
        The file.
    say : callable
        Is told what is done now.
    anonymizer : Anonymizer
        Takes names and paths out of what is written.
    """

    def __init__(self, path: Path, say: Say, anonymizer: Anonymizer):
        self._path, self._say, self._anonymizer = path, say, anonymizer
        self._matrix, self._target = Path(), ""
        self._started, self._written = time.monotonic(), -_WRITE_S
        self._worker = Worker()
        self._lost = 0
        self._info: DeviceInfo | None = None
        self._results: dict[str, Any] = {}
        self._cases: list[Case] = []
        self._environment: Any = None
        self.errors: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {"card_report": FORMAT, "complete": False, "privacy": PRIVACY}
        self.data |= {"system": system(), "sensors": {}, "target": None}

    def look(self, target: str | None) -> str | None:
        """Ask the doctor, and find out what the rows run on; None where there is nothing."""
        self._say("doctor")
        try:
            found = self._worker.call("rocmkern.cli.doctor:examine", deadline_s=DOCTOR_S, what="rocmkern doctor")
        except Exception as error:
            self._keep("doctor", error)
        else:
            self.data["doctor"] = without_places(asdict(found))
            target = target or (None if found.target == "none" else found.target)
        # What was opened to look at it is not in the way of the rows.
        self._worker.close()
        self.data["target"] = target
        self.write()
        return target

    def open(self, target: str, matrix: Path) -> bool:
        """Open the device that a target stands for, in a process of its own; whether that went well."""
        self._say(f"opening {target}")
        self._matrix, self._target, opened = matrix, target, True
        try:
            device, self._info = self._worker.call(f"{__name__}:describe", target, what=f"opening {target}")
        except Exception as error:
            self._keep("open", error)
            device, opened = MeasuredDevice("", target), False
        # Without a label it would be the machine's name.
        self._environment = environment_of({target: device}, device.name or target)
        self.data["emulated"] = device.emulated
        self.write()
        return opened

    def rows(self, cases: Sequence[Case], deadline_s: float | None) -> None:
        """Run cases one after another."""
        self._cases += cases
        self._sense("before")
        for number, case in enumerate(cases, 1):
            if self._given_up():
                break
            self._say(f"row {number} of {len(cases)}: {case.id}")
            limit = deadline_s if deadline_s is not None else case.facts.deadline_s or DEFAULT_DEADLINE_S
            self._run(case, "rocmkern.testing.jobs:run_case_of", limit)
            self.write(at_once=False)
        self.data["rows_asked"] = len(cases)
        self._sense("after_rows")

    def benchmarks(self, cases: Sequence[Case], deadline_s: float = BENCHMARK_S) -> None:
        """Time cases, with what the sensors show meanwhile."""
        self._cases += cases
        for number, case in enumerate(cases, 1):
            if self._given_up():
                break
            self._say(f"benchmark {number} of {len(cases)}: {case.id}")
            with self._sensing(case.id):
                self._run(case, f"{__name__}:speed_of", deadline_s)
            self.write()
        self.data["benchmarks_asked"] = len(cases)
        self._sense("after_benchmarks")

    def close(self) -> None:
        """End the process that works."""
        self._worker.close()

    def finish(self) -> dict[str, Any]:
        """Look at the code that ran, and write the file for the last time; returns what is in it."""
        self._worker.close()
        used = sorted({code for result in self._results.values() for code in result.code})
        self.data["code"] = {code: {"unknown": "not in the cache of kernels"} for code in used} | described_code(used)
        if not used:
            self.data["code_absent"] = "no code ran on an AMD GPU, and of other code no hashes are kept"
        hashes = sorted(each["code_sha256"] for each in self.data["code"].values() if "code_sha256" in each)
        self.data["code_sha256"] = hashlib.sha256("".join(hashes).encode()).hexdigest() if hashes else None
        self.data["complete"] = True
        return self.write()

    def write(self, at_once: bool = True) -> dict[str, Any]:
        """Write the file, in place of an earlier one; returns what is in it."""
        now = time.monotonic()
        if not at_once and now - self._written < _WRITE_S:
            return {}
        self._written = now
        outcomes = Counter(_outcome(result) for result in self._results.values())
        asked = self.data.get("rows_asked", 0) + self.data.get("benchmarks_asked", 0)
        counts = {"outcomes": dict(outcomes), "not_run": max(0, asked - len(self._results))}
        counts["errors"] = dict(Counter(error["kind"] for error in self.errors))
        data = {**self.data, "seconds": round(now - self._started, 1), "counts": counts, "errors": self.errors}
        if self._environment is not None:
            results = list(self._results.values())
            data["run"] = as_data(Run(self._environment, results, labels_of(self._cases)))
        anonymous: dict[str, Any] = self._anonymizer.data(data)
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(anonymous, file, indent=1, default=float)
            file.write("\n")
            file.flush()
            # The next row may take the machine down.
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        return anonymous

    def _run(self, case: Case, function: str, limit: float) -> None:
        """One case, whose result or failure is kept."""
        record: dict[str, Any] = {}
        error: Exception | None = None
        try:
            record = self._worker.call(
                function, str(self._matrix), case.id, self._target, deadline_s=limit, what=case.id
            )
        except Exception as failure:
            error = failure
        outcome = "passed" if error is None else "failed"
        try:
            reason = tolerated(case, self._target, error) or ""
        except Exception as failure:
            outcome, reason = "failed", self._keep(case.id, failure)
        self._after(error)
        self._results[case.id] = result_of(case, self._target, outcome, reason, record)

    def _keep(self, what: str, error: BaseException) -> str:
        """Keep an error; returns it in a line."""
        kind = kind_of(error)
        text = str(error)
        text = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT // 2]}\n...\n{text[-_MOST_TEXT // 2 :]}"
        self.errors.append({"case": what, "kind": kind, "text": text})
        # What is found out begins with what it is; a traceback ends with it.
        lines = [line for line in text.splitlines() if line.strip()] or [kind]
        line = f"{kind}: {lines[0] if kind in ('hang', 'crash') or isinstance(error, CaseFailure) else lines[-1]}"
        self._say(f"  {line}")
        return line[:500]

    def _after(self, error: Exception | None) -> None:
        """After an error that is no wrong result: a new process, for a driver may fail for ever in the old one. After a
        hang or a crash: count it, and let a suspect card answer before it is used again.
        """
        if error is not None and not isinstance(error, CaseFailure) and self._target in GPU_TARGETS:
            self._worker.close()
        if not isinstance(error, WorkerError) or error.kind not in ("hang", "crash"):
            return
        self._lost += 1
        if self._info is None or self._info.kind not in GPU_TARGETS:
            return

        mark = suspect.suspicion_of(self._info)
        failure = None if mark is None else suspect.look_again(mark)
        if failure is not None:
            self.data["given_up"] = f"after this the card did not answer any more: {failure}"

    def _given_up(self) -> bool:
        if self._lost >= MOST_LOST:
            self.data.setdefault("given_up", f"{self._lost} rows hung or crashed; the others were not run")
        return "given_up" in self.data

    def _sense(self, when: str) -> None:
        self.data["sensors"][when] = self._reading()

    def _reading(self) -> dict[str, Any]:
        if self.data.get("emulated"):
            return {"absent": "the card is emulated"}
        return _sensors.read(self._info)

    @contextlib.contextmanager
    def _sensing(self, name: str) -> Iterator[None]:
        """Read the sensors every second within the block."""
        samples: list[dict[str, Any]] = []
        over = threading.Event()

        def sample() -> None:
            while len(samples) < _MOST_SAMPLES and not over.wait(_SAMPLE_S):
                samples.append(self._reading())
                if "absent" in samples[-1]:
                    return

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.data["sensors"].setdefault("during", {})[name] = samples


def _outcome(result: Any) -> str:
    return "known" if result.reason.startswith("known failure until") else result.outcome


def kind_of(error: BaseException) -> str:
    """What sort of error it is, for counting: which check, hang, crash, or the exception's class."""
    if isinstance(error, CaseFailure):
        return f"check {error.check}"
    return error.kind if isinstance(error, WorkerError) else type(error).__name__


def without_places(doctor: dict[str, Any]) -> dict[str, Any]:
    """Doctor's findings without what may name people: who holds a lock, values of variables that are folders."""
    doctor["locks"] = dict.fromkeys(doctor["locks"], "another process holds it")
    doctor["environment"] = {
        name: "set" if name.endswith(("_DIR", "_LLD")) else value for name, value in doctor["environment"].items()
    }
    return doctor


def system(filesystem_root: Path | str = "/") -> dict[str, Any]:
    """The kernel's version and that of the card's driver, as far as they are known."""
    root = Path(filesystem_root)
    release = re.match(r"[\d.]+", platform.release())
    found = {"system": platform.system(), "machine": platform.machine(), "kernel": release[0] if release else ""}
    found["wsl"] = str((root / "dev/dxg").exists()).lower()
    for module in ("amdgpu", "nvidia"):
        with contextlib.suppress(OSError):
            version = (root / "sys/module" / module / "version").read_text(encoding="ascii").strip()
            found[module] = version
        if module not in found and (root / "sys/module" / module).is_dir():
            found[module] = "the kernel's own"
    return found


def described_code(wanted: Sequence[str], directory: Path | None = None) -> dict[str, dict[str, Any]]:
    """What the cache of kernels knows of machine code, by the sha256 of its bytes."""
    # deferred: start-up
    from rocmkern.targets import cache, entries

    directory = cache.own_directory() if directory is None else directory
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(directory.glob(f"*{cache.SUFFIX}")) if directory is not None and wanted else ():
        try:
            entry = entries.decode(read_plain_file(file, entries.LARGEST))
        except (OSError, entries.EntryError):
            continue
        sha256 = hashlib.sha256(entry.code).hexdigest()
        if sha256 in wanted:
            known: dict[str, Any] = {
                "kernel": entry.kernel.rpartition(".")[2],
                "arch": entry.arch,
                "dtypes": list(entry.dtypes),
            }
            known |= {"config": entry.config, "compiler": entry.compiler, "bytes": len(entry.code)}
            found[sha256] = known | (_of_code_object(entry.code) if entry.target == "hip" else {})
    return found


def _of_code_object(code: bytes) -> dict[str, Any]:
    # deferred: start-up
    from rocmkern.targets import code_object

    contents = code_object.read(code)
    kernel = contents.kernels[0]
    numbers = {"vgpr": ".vgpr_count", "sgpr": ".sgpr_count", "lds": ".group_segment_fixed_size"}
    described: dict[str, Any] = {name: kernel[key] for name, key in numbers.items() if key in kernel}
    return described | {
        "code_sha256": contents.code_sha256, "target": contents.target, "code_object_version": contents.version,
    }  # fmt: skip


# In the process of its own


def describe(target: str) -> tuple[MeasuredDevice, DeviceInfo | None]:
    """What a target is here, and its device; opens a GPU."""
    # deferred: start-up
    from rocmkern.matrix.results import device_of
    from rocmkern.runtime.devices import open_device

    info = open_device(target).info if target in GPU_TARGETS else None
    return device_of(target, info is not None and is_emulated(target)), info


def is_emulated(target: str) -> bool:
    """Whether the HIP runtime is that of the virtual GPU (tools/virtual_gpu), which runs machine code on the CPU."""
    if target != "hip":
        return False
    # deferred: start-up
    from rocmkern.targets import amd_llvm

    try:
        return hasattr(ctypes.CDLL(amd_llvm.library_path("amdhip64")), "vgpu_callbacks")
    except (OSError, RocmkernError):
        return False


def speed_of(path: str, case_id: str, target: str) -> dict[str, Any]:
    """Time a case of a matrix file, as a record."""
    # deferred: start-up
    from rocmkern.testing.jobs import benchmark_of

    return {"speed": benchmark_of(path, case_id, target)[0]}
