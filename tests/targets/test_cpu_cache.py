"""The cache of compiled kernels on disk: several processes, directories and files that must not be used, damage."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import target_kernels as k

from rocmkern import tile as T
from rocmkern.runtime import directories
from rocmkern.runtime.errors import RocmkernWarning, TargetError
from rocmkern.targets import cache, entries
from rocmkern.targets.cpu import CpuTarget
from rocmkern.targets.gpu import CodeRefusedError, GpuTarget

REPORT = "import target_kernels; target_kernels.report()"
COLD, WARM = {"compiled": 1}, {"compiled": 0, "compiler": []}


def is_like(result, wanted):
    return result["right"] and all(result[name] == value for name, value in wanted.items())


def entry_files(directory):
    return sorted(directory.glob("*.entry"))


@pytest.fixture
def own_cache(warm_cache, tmp_path, monkeypatch):
    """A copy of the warm cache, as this process's; yields its one entry."""
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    (found,) = entry_files(warm_cache)
    shutil.copy(found, directory)
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(directory))
    monkeypatch.setattr(cache, "_warned", set())
    return directory / found.name


def compiled_again(monkeypatch):
    """Run the kernel on a new target of this process; whether it was compiled, which compiling is replaced for."""
    made = []

    def compile_entry(kernel, cfg, dtypes):
        made.append(kernel)
        return entries.decode(GOOD[0])

    monkeypatch.setattr("rocmkern.targets.cpu.compile_entry", compile_entry)
    target, x = CpuTarget(), k.data()
    out = x * 0
    target.launch(k.square, k.Config(arch=target.arch), (-(-len(x) // 4), 1, 1), [x, out])
    assert k.is_right(out)
    return bool(made)


GOOD: list[bytes] = []


@pytest.fixture
def good(own_cache):
    """The bytes of the entry; `compiled_again` gives them in place of compiling."""
    GOOD[:] = [own_cache.read_bytes()]
    return GOOD[0]


def test_a_warm_process_compiles_nothing_and_computes_the_same_bits(script_with, tmp_path):
    directory = tmp_path / "made" / "when needed"
    run = script_with(directory)
    cold, warm = run(REPORT), run(REPORT)
    assert is_like(cold, COLD) and is_like(warm, WARM)
    assert cold["digest"] == warm["digest"]
    (file,) = entry_files(directory)
    assert file.name.startswith("cpu-square-")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700 and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(directory.glob("*.tmp"))


def test_a_directory_is_ours_alone_whatever_the_umask_says(tmp_path):
    before = os.umask(0)
    try:
        directories.make_own(tmp_path / "cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_processes_that_want_the_same_variant_at_once_compile_it_once(script_with, tmp_path):
    run = script_with(tmp_path)
    tmp_path.chmod(0o700)
    results = [run.finish(p) for p in [run.start(REPORT) for _ in range(3)]]
    assert all(r["right"] for r in results)
    assert len({r["digest"] for r in results}) == 1
    assert sum(r["compiled"] for r in results) == 1
    assert is_like(run(REPORT), WARM)
    assert len(entry_files(tmp_path)) == 1 and not list(tmp_path.glob("*.tmp"))


def test_a_lock_that_cannot_be_had_costs_time_only(own_cache, good, monkeypatch):
    own_cache.unlink()
    (own_cache.parent / "locks").write_text("in its place")
    assert compiled_again(monkeypatch)
    assert own_cache.read_bytes() == good


def test_the_first_compilation_of_a_process_is_announced_once(script_with, tmp_path):
    run = script_with(tmp_path / "cache")
    for settings, said in (
        ({"ROCMKERN_QUIET": ""}, 1),
        ({"ROCMKERN_QUIET": "1", "ROCMKERN_CACHE_DIR": str(tmp_path / "other")}, 0),
    ):
        process = run.start(REPORT, **settings)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0 and err.count("rocmkern: compiling square") == said
    assert run.start(REPORT).communicate(timeout=120)[1] == ""


def unusable(kind, tmp_path):
    """A cache directory that cannot be used, each for another reason."""
    if kind == "a file in its place":
        path = tmp_path / "file"
        path.write_text("not a directory")
    elif kind == "below a file":
        (tmp_path / "file").write_text("not a directory")
        path = tmp_path / "file" / "cache"
    elif kind == "a system directory":
        path = "/proc/rocmkern"
    else:
        path = tmp_path / "locked"
        path.mkdir()
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("kind", ["a file in its place", "below a file", "a system directory", "read-only"])
def test_a_directory_that_cannot_be_used_costs_the_cache_only(own_cache, good, monkeypatch, tmp_path, kind):
    if kind == "a system directory" and not os.path.isdir("/proc/self"):
        pytest.skip("this system has no /proc")
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(unusable(kind, tmp_path)))
    assert compiled_again(monkeypatch)


def test_a_directory_for_everybody_with_a_sticky_bit_is_no_cache_but_may_hold_one(
    own_cache, good, monkeypatch, tmp_path
):
    """As /tmp is: others put files into it, and cannot put another directory in the place of ours."""
    everybody = tmp_path / "everybody's"
    everybody.mkdir()
    everybody.chmod(0o1777)
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(everybody))
    with pytest.warns(RocmkernWarning, match="others may write it"):
        assert compiled_again(monkeypatch)
    assert not list(everybody.iterdir())
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(everybody / "ours"))
    assert compiled_again(monkeypatch) and not compiled_again(monkeypatch)


def test_a_link_is_as_good_as_the_directory_behind_it(own_cache, good, monkeypatch, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(own_cache.parent)
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(link))
    assert not compiled_again(monkeypatch)
    make_foreign(own_cache.parent, "everybody's", monkeypatch)
    with pytest.warns(RocmkernWarning, match="others may write it"):
        assert compiled_again(monkeypatch)


def test_a_second_name_of_an_entry_makes_it_no_worse(own_cache, good, monkeypatch):
    """It is the same file: with this user as its owner, or not."""
    os.link(own_cache, own_cache.with_name("second"))
    assert not compiled_again(monkeypatch)
    own_cache.with_name("second").chmod(0o666)
    assert compiled_again(monkeypatch)


#: The kernel, with the entry in argv[1] in place of what compiling gives; `compiled` counts as if it had been.
GIVEN = """
import os, signal, sys
import target_kernels as k
from rocmkern.targets import cache, cpu, entries

def compile_entry(kernel, cfg, dtypes):
    cpu._compiled.append("")
    {before}
    return good

good = entries.decode(open(sys.argv[1], "rb").read())
cpu.compile_entry = compile_entry
{more}
k.report()
"""


@pytest.fixture
def given(own_cache, good, tmp_path, script_with):
    """Run `GIVEN` in a process, with an empty cache in ``tmp_path / "empty"``."""
    source = tmp_path / "good.entry"
    source.write_bytes(good)

    def start(before="pass", more="", **settings):
        program = GIVEN.format(before=before, more=more)
        return script_with(tmp_path / "empty").start(program, str(source), **settings)

    return start


WITHOUT_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"


def test_a_disk_without_room_costs_the_cache_only(given, script_with, tmp_path):
    for _ in range(2):
        assert is_like(script_with.finish(given(more=WITHOUT_ROOM)), COLD)
        assert [path.name for path in (tmp_path / "empty").iterdir()] == ["locks"]
    assert is_like(script_with.finish(given()), COLD)
    assert is_like(script_with.finish(given()), WARM)


@pytest.mark.parametrize(
    ("mount", "kept"),
    [
        ("mount -t tmpfs -o size=16k none {0} && head -c 12k /dev/zero >{0}/file", False),
        ("mount -t tmpfs -o ro none {0}", False),
        ("mount -t tmpfs -o mode=700 none {0}", True),
    ],
)
def test_file_systems(own_cache, good, tmp_path, mount, kept):
    """Full, read-only, and as it should be."""
    place, source = tmp_path / "mounted", tmp_path / "good.entry"
    place.mkdir(mode=0o700)
    source.write_bytes(good)
    twice = '"$0" -c "$1" "$2" && "$0" -c "$1" "$2"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mounted = mount.format(place)
    if shutil.which("unshare") is None or subprocess.run([*command, mounted], capture_output=True).returncode:
        pytest.skip("this user may not mount anything")
    environment = {**os.environ, "ROCMKERN_CACHE_DIR": str(place), "ROCMKERN_TARGET": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path]))
    program = GIVEN.format(before="pass", more="")
    command += [f"{mounted} && {twice}", sys.executable, program, str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    first, second = map(json.loads, done.stdout.splitlines())
    assert is_like(first, COLD) and is_like(second, WARM if kept else COLD), done.stderr


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    "where",
    [
        {"before": KILLED},
        {"more": f"cache.os.replace = lambda *names: {KILLED}"},
        {"more": f"cache.os.fdopen = lambda *given: {KILLED}"},
    ],
)
def test_a_process_that_is_killed_in_the_middle_leaves_nothing_that_matters(given, script_with, tmp_path, where):
    process = given(**where)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    left = [path for path in (tmp_path / "empty").iterdir() if path.suffix == ".tmp"]
    assert len(left) == ("more" in where)
    assert is_like(script_with.finish(given()), COLD)
    for path in left:
        assert path.exists()  # it may be that of a process that is busy
        os.utime(path, (0, 0))
    for path in entry_files(tmp_path / "empty"):
        path.unlink()
    assert is_like(script_with.finish(given()), COLD) and is_like(script_with.finish(given()), WARM)
    assert not list((tmp_path / "empty").glob("*.tmp"))


def test_an_interrupt_in_the_middle_is_the_users_and_the_next_call_is_right(own_cache, good, monkeypatch):
    own_cache.unlink()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    x = k.data()
    out = x * 0
    arguments = (k.square, k.Config(arch=CpuTarget().arch), (-(-len(x) // 4), 1, 1), [x, out])
    for owner, name in (("rocmkern.targets.cpu", "compile_entry"), ("rocmkern.targets.cache.os", "replace")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("rocmkern.targets.cpu.compile_entry", lambda *arguments: entries.decode(good))
            patch.setattr(f"{owner}.{name}", interrupted)
            CpuTarget().launch(*arguments)
        assert [path.name for path in own_cache.parent.iterdir()] == ["locks"]
    with monkeypatch.context() as patch:
        patch.setattr("rocmkern.targets.cpu.compile_entry", lambda *arguments: entries.decode(good))
        CpuTarget().launch(*arguments)
    assert k.is_right(out) and own_cache.read_bytes() == good


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_whom_no_list_knows(given, script_with):
    """No HOME and no line in the list of users: nothing is kept, and nothing else is wrong."""
    # The other user may not be allowed to read Python's files, so a first run imports all that is needed.
    more = """
from rocmkern import targets
from rocmkern.runtime import directories
right = k.run()
os.setgroups([]), os.setgid(54321), os.setuid(54321)
del os.environ["ROCMKERN_CACHE_DIR"]
os.environ.pop("HOME", None), os.environ.pop("XDG_CACHE_HOME", None)
assert directories.cache_directory() is None
cpu._compiled.clear(), targets._made.cache_clear()
"""
    assert is_like(script_with.finish(given(more=more)), COLD)


def test_a_user_without_a_home_directory_has_no_cache(own_cache, good, monkeypatch):
    monkeypatch.delenv("ROCMKERN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where HOME and the list of users know nothing
    assert directories.cache_directory() is None
    assert compiled_again(monkeypatch)


def make_foreign(path, kind, monkeypatch):
    """Let somebody else have written a path."""
    if kind == "somebody else's":
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
        else:
            uid = os.geteuid()
            monkeypatch.setattr(directories.os, "geteuid", lambda: uid + 1)
    else:
        path.chmod(path.stat().st_mode | (stat.S_IWGRP if kind == "the group's" else stat.S_IWOTH))


FOREIGN = ["somebody else's", "the group's", "everybody's"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_directory_that_others_may_write_is_left_alone_with_one_warning(own_cache, good, monkeypatch, kind):
    make_foreign(own_cache.parent, kind, monkeypatch)
    with pytest.warns(RocmkernWarning, match="neither read from nor kept in") as caught:
        assert compiled_again(monkeypatch)
    assert ("chmod" in str(caught[0].message)) == (kind != "somebody else's")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled_again(monkeypatch)
    assert [path.name for path in own_cache.parent.iterdir()] == [own_cache.name]


@pytest.mark.parametrize("kind", FOREIGN)
def test_an_entry_that_others_may_have_written_is_replaced(own_cache, good, monkeypatch, kind):
    if kind == "somebody else's" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    make_foreign(own_cache, kind, monkeypatch)
    assert compiled_again(monkeypatch)
    assert not compiled_again(monkeypatch)
    assert directories.shared_with(own_cache.stat()) is None


def open_files():
    """How many files this process has open, where the system says so."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def put_in_place(path, kind):
    good = path.read_bytes()
    path.unlink()
    if kind == "a FIFO":
        os.mkfifo(path, 0o600)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            before = os.getcwd()
            os.chdir(path.parent)  # addresses are short
            server.bind(path.name)
            os.chdir(before)
    elif kind == "a link to an entry":
        path.with_name("elsewhere").write_bytes(good)
        path.symlink_to("elsewhere")
    elif kind == "a link to nothing":
        path.symlink_to("nothing")
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
        if kind == "a directory with files":
            (path / "file").write_text("")


@pytest.mark.parametrize(
    "kind",
    [
        "a FIFO",
        "a socket",
        "a link to an entry",
        "a link to nothing",
        "a device",
        "a directory",
        "a directory with files",
    ],
)
@pytest.mark.timeout(200)
def test_what_is_no_plain_file_is_replaced_and_never_waited_for(own_cache, good, monkeypatch, kind):
    put_in_place(own_cache, kind)
    opened = open_files()
    assert compiled_again(monkeypatch)
    assert open_files() == opened
    assert stat.S_ISREG(own_cache.lstat().st_mode) and own_cache.read_bytes() == good
    assert not compiled_again(monkeypatch)


def test_an_entry_that_cannot_be_read_is_replaced(own_cache, good, monkeypatch):
    if os.geteuid() == 0:
        pytest.skip("permissions do not stop root")
    own_cache.chmod(0)
    assert compiled_again(monkeypatch)
    assert not compiled_again(monkeypatch)


@pytest.mark.parametrize("damage", ["cut", "longer", "header", "code", "checksum", "empty", "another version"])
def test_damaged_entries_are_compiled_again(own_cache, good, monkeypatch, damage):
    changed = bytearray(good)
    if damage in ("header", "code", "checksum"):
        changed[{"header": 40, "code": len(good) // 2, "checksum": -1}[damage]] ^= 1
    elif damage == "another version":
        changed[8] += 1
    own_cache.write_bytes({"cut": good[:-1], "longer": good + b"\0", "empty": b""}.get(damage, bytes(changed)))
    assert compiled_again(monkeypatch)
    assert own_cache.read_bytes() == good
    assert not compiled_again(monkeypatch)


def test_entries_that_changed_their_names_are_compiled_again(script_with, tmp_path):
    """What lies under a variant's name is another variant: nothing of it runs."""
    run = script_with(tmp_path / "cache")
    assert is_like(run(REPORT), COLD)
    other = run(REPORT.replace(".report()", ".report(target_kernels.other())"))
    assert is_like(other, COLD)
    one, two = entry_files(tmp_path / "cache")
    contents = one.read_bytes(), two.read_bytes()
    one.write_bytes(contents[1])
    two.write_bytes(contents[0])
    assert is_like(run(REPORT), COLD) and is_like(run(REPORT), WARM)


def test_an_entry_whose_machine_code_does_not_load_is_compiled_again(own_cache, good, monkeypatch):
    """With a right checksum, as another version of the library might write one."""
    entry = entries.decode(good)
    for changed in (
        {"code": entry.code[:100]},
        {"code": b"\x7fELF" + bytes(200)},
        {"launch": {"symbol": "elsewhere"}},
        {"launch": {}},
        {"launch": {"symbol": 3}},
        {"machine": ("sse17",)},
    ):
        own_cache.write_bytes(entries.encode(entries.Entry(**{**vars(entry), **changed})))
        assert compiled_again(monkeypatch), changed
        assert own_cache.read_bytes() == good


def test_entries_are_found_where_no_compiler_is_installed(own_cache, good, monkeypatch):
    monkeypatch.setattr("rocmkern.targets.cpu.versions", lambda: None)
    assert not compiled_again(monkeypatch)


def test_another_version_of_the_compiler_has_entries_of_its_own(own_cache, good, monkeypatch):
    monkeypatch.setattr("rocmkern.targets.cpu.versions", lambda: "numba 99")
    assert compiled_again(monkeypatch)


def test_what_numba_is_told_makes_entries_of_its_own(own_cache, good, monkeypatch):
    """Machine code that is slow because somebody looked for a mistake must not stay."""
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert compiled_again(monkeypatch)
    monkeypatch.delenv("NUMBA_OPT")
    assert not compiled_again(monkeypatch)


def test_code_that_was_compiled_just_now_and_does_not_load_is_an_error_in_words(own_cache, good, monkeypatch):
    own_cache.write_bytes(b"")
    wrong = entries.encode(entries.Entry(**{**vars(entries.decode(good)), "machine": ("sse17",)}))
    monkeypatch.setitem(globals(), "GOOD", [wrong])
    with pytest.raises(TargetError, match=r"square, compiled for cpu-.*, cannot be used here: it is for another"):
        compiled_again(monkeypatch)


class Card(GpuTarget):
    """A GPU whose driver takes machine code as it is said."""

    def __init__(self, entry, takes):
        info = SimpleNamespace(arch=entry.arch)
        super().__init__(SimpleNamespace(kind="cpu", info=info, current=contextlib.nullcontext))
        self.entry, self.takes, self.compiled = entry, takes, 0

    def compile_entry(self, kernel, cfg, dtypes):
        self.compiled += 1
        return self.entry

    def load(self, entry):
        if not self.takes(self):
            raise CodeRefusedError("the driver does not know this image")
        return SimpleNamespace()

    def versions(self):
        return self.entry.compiler


def test_code_that_a_driver_does_not_take_is_compiled_again(own_cache, good, monkeypatch):
    """Once: where it does not take what is new either, that is an error."""
    entry = entries.decode(good)
    key = cache.Key.of(entry)
    monkeypatch.setattr("rocmkern.targets.source.variant_key", lambda *given: key)
    arguments = (k.square, k.Config(arch=entry.arch), key.dtypes)
    for takes, compiled in ((lambda card: True, 0), (lambda card: card.compiled > 0, 1)):
        card = Card(entry, takes)
        card._variant(*arguments)
        assert card.compiled == compiled
    with pytest.raises(TargetError, match="cannot be used here: the driver does not know this image"):
        Card(entry, lambda card: False)._variant(*arguments)


@pytest.fixture
def shipped(own_cache, good, monkeypatch, tmp_path):
    """The entry as a wheel would bring it, and no other."""
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    path = cache.SHIPPED / cache.shipped_name(cache.Key.of(entries.decode(good)))
    path.parent.mkdir()
    shutil.move(own_cache, path)
    path.chmod(0o644)
    library = os.stat(cache.__file__)
    if os.geteuid() == 0:
        os.chown(path, library.st_uid, library.st_gid)
    return path


def test_what_a_wheel_brings_is_used_whatever_compiler_there_is(shipped, monkeypatch):
    monkeypatch.setattr("rocmkern.targets.cpu.versions", lambda: "numba 99")
    assert not compiled_again(monkeypatch)


def test_what_a_wheel_brings_is_not_used_where_numba_is_asked_for_other_code(shipped, monkeypatch):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert compiled_again(monkeypatch)


def test_what_a_wheel_brought_is_checked_too(shipped, good, monkeypatch):
    shipped.write_bytes(good[:-1])
    assert compiled_again(monkeypatch)


def test_a_shipped_entry_must_be_as_safe_as_the_library(shipped, monkeypatch):
    shipped.chmod(0o666)
    assert compiled_again(monkeypatch)


def test_files_appear_whole_or_not_at_all(monkeypatch, tmp_path):
    path = tmp_path / "entry"
    cache.write_atomically(path, b"first")

    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        cache.write_atomically(path, b"second")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_where_the_directory_is(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "own"))
    assert directories.cache_directory() == tmp_path / "own"
    monkeypatch.delenv("ROCMKERN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert directories.cache_directory() == tmp_path / "rocmkern"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert directories.cache_directory() == tmp_path / "home" / ".cache" / "rocmkern"
    assert directories.cache_directory({"ROCMKERN_CACHE_DIR": "~/x"}) == tmp_path / "home" / "x"


KERNEL = """
from rocmkern import tile as T
{imports}

@T.kernel
def square(cfg, x: T.Tensor[2], out: T.Tensor[2]):
    row = T.row_index(cfg, 4)
    valid = row < 3
    t = T.load_tile(cfg, x, (row,), 0, 32, valid)
    T.store_tile(out, (row,), 0, {expression}, valid)
"""
DEVICE = """
from rocmkern import tile as T
FACTOR = {factor}

@T.device
def times(t):
    return t * {by}
"""
LAUNCH = """
import json, sys
import numpy as np
from rocmkern import tile as T
from rocmkern.targets.cpu import CpuTarget
sys.path.insert(0, sys.argv[1])
import mykernel, target_kernels
x, out = np.ones((3, 32), np.float32), np.zeros((3, 32), np.float32)
t = CpuTarget()
t.launch(mykernel.square, T.Config(arch=t.arch), (1, 1, 1), [x, out])
print(json.dumps([float(out[0, 0]), target_kernels.compilations()["compiled"]]))
"""


def test_a_change_in_what_a_kernel_reaches_makes_a_new_variant(script_with, tmp_path):
    """The kernel's own file, a device function of another file, and a constant of another file."""
    run = script_with(tmp_path / "cache")
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=1.0, by="2.0"))
    both = "from mydevice import FACTOR, times"

    def value(kernel):
        (tmp_path / "mykernel.py").write_text(kernel)
        return run(LAUNCH, str(tmp_path), PYTHONDONTWRITEBYTECODE="1")

    first = KERNEL.format(imports=both, expression="times(t) * FACTOR")
    assert value(first)[0] == 2
    assert value(first) == [2, 0]
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=1.0, by="3.0"))
    assert value(first)[0] == 3
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=5.0, by="3.0"))
    assert value(first)[0] == 15
    by_module = KERNEL.format(imports="import mydevice", expression="mydevice.times(t) * mydevice.FACTOR")
    assert value(by_module)[0] == 15
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=5.0, by="4.0"))
    assert value(by_module)[0] == 20


PART = """
from dataclasses import dataclass
from rocmkern import tile as T

@dataclass(frozen=True)
class Part(T.Config):
    name: str = ""

    @property
    def factor(self):
        return {factor}
"""
WHOLE = """
from dataclasses import dataclass, field
from rocmkern import tile as T
from mypart import Part

@dataclass(frozen=True)
class Whole(T.Config):
    m: int = 4
    part: Part = field(default_factory=Part)

@T.kernel
def square(cfg, x: T.Tensor[2], out: T.Tensor[2]):
    row = T.row_index(cfg.part, cfg.m)
    t = T.load_tile(cfg.part, x, (row,), 0, 32, row < 3)
    if cfg.part.name == "half":
        t = t * 0.5
    T.store_tile(out, (row,), 0, t * cfg.part.factor, row < 3)
"""
LAUNCH_WHOLE = LAUNCH.replace("T.Config(arch=t.arch)", "mykernel.Whole(t.arch, part=mypart.Part(t.arch, name=NAME))")


def test_a_configuration_within_another_one_is_found_by_a_second_process(script_with, tmp_path):
    """And what a configuration's class computes is part of what is compiled."""
    (tmp_path / "mypart.py").write_text(PART.format(factor=1))
    (tmp_path / "mykernel.py").write_text(WHOLE)
    run = script_with(tmp_path / "cache")
    program = LAUNCH_WHOLE.replace("import mykernel,", "import mykernel, mypart,")
    for name, value in (("half", 0.5), ("whole", 1)):
        assert run(program.replace("NAME", repr(name)), str(tmp_path)) == [value, 1]
    for name, value in (("half", 0.5), ("whole", 1)):
        assert run(program.replace("NAME", repr(name)), str(tmp_path)) == [value, 0]
    (tmp_path / "mypart.py").write_text(PART.format(factor=4))
    assert run(program.replace("NAME", "'half'"), str(tmp_path), PYTHONDONTWRITEBYTECODE="1") == [2, 1]


def test_a_kernel_that_a_function_made_is_not_kept(tmp_path, monkeypatch):
    """Two of them have one name and one file, and different code."""
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "cache"))

    def made(factor):
        @T.kernel
        def times(cfg, x: T.Tensor[2], out: T.Tensor[2]):
            row = T.row_index(cfg, 4)
            T.store_tile(out, (row,), 0, T.load_tile(cfg, x, (row,), 0, 32, row < 3) * factor, row < 3)

        return times

    x, target = k.data(3), CpuTarget()
    for factor in (2.0, 3.0):
        out = x * 0
        target.launch(made(factor), T.Config(arch=target.arch), (1, 1, 1), [x, out])
        assert (out == x * np.float32(factor)).all()
    assert not (tmp_path / "cache").exists()
