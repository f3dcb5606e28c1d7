"""The format of entries, and the loader of machine code: what was changed is refused, whatever was changed."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import struct

import pytest

from rocmkern.targets import elf, entries, source
from rocmkern.targets.entries import Entry, EntryError

KEY = "0123456789abcdef" * 4
CPU = Entry(
    key=KEY, target="cpu", arch="cpu-avx2", kernel="kernels.square", config="Config(m=4)", dtypes=("float32",) * 2,
    compiler="numba 1, llvmlite 2", machine=("avx", "avx2"), launch={"symbol": "launch"}, code=bytes(range(256)) * 20,
)  # fmt: skip
HIP = dataclasses.replace(
    CPU, target="hip", arch="gfx1100", machine=(), code=b"\x7fELF" + bytes(3000),
    launch={"title": "square", "name": "_Zsquare", "words": 10, "threads": 128},
)  # fmt: skip
CUDA = dataclasses.replace(
    CPU, target="cuda", arch="sm_90", machine=(), code=b".version 8.0\n.entry square()\n" * 50,
    launch={
        "name": "square", "words": 18, "threads": 256, "shared_bytes": 65536, "overlaps": True,
        "maps": [{"symbol": "map_0_4_64_float16", "at": 0, "ndim": 4, "rows": 64, "dtype": "float16"}],
    },
)  # fmt: skip
ENTRIES = {"cpu": CPU, "hip": HIP, "cuda": CUDA}


def refused(data: bytes, key: str = KEY) -> bool:
    """Whether these bytes are refused, in the one way that is caught."""
    try:
        return entries.decode(data).key != key
    except EntryError:
        return True


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed in one of the ways in which files change."""
    kind, at = rng.randrange(7), rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + rng.randbytes(rng.randrange(1, 64))
    if kind == 2:
        return data[:at] + data[at + 1 :]
    if kind == 3:
        return data[:at] + rng.randbytes(1) + data[at:]
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 9)):
        place = rng.randrange(24) if kind == 4 else rng.randrange(len(data))  # in the head, or anywhere
        changed[place] ^= 1 << rng.randrange(8)
    if kind == 5:
        end = min(len(data), at + rng.randrange(1, 4096))
        changed[at:end] = bytes(end - at)
    return bytes(changed)


@pytest.mark.parametrize("target", ENTRIES)
def test_what_was_written_is_read(target):
    assert entries.decode(entries.encode(ENTRIES[target])) == ENTRIES[target]


@pytest.mark.parametrize("target", ENTRIES)
def test_changed_entries_are_refused(target):
    data = entries.encode(ENTRIES[target])
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    for number in range(3000):
        changed = mutated(data, rng)
        assert changed == data or refused(changed), f"seed {seed}, change {number}"


def with_header(header: bytes, code: bytes = b"code", version: int = entries.FORMAT) -> bytes:
    """A file with a right checksum, whatever its header."""
    body = struct.pack("<8sIIQ", entries.MAGIC, version, len(header), len(code)) + header + code
    return body + hashlib.sha256(body).digest()


GOOD_HEADER = entries.encode(CPU)[24 : -32 - len(CPU.code)]


def test_the_header_of_this_test_is_one():
    assert entries.decode(with_header(GOOD_HEADER)).launch == CPU.launch


@pytest.mark.parametrize(
    "header",
    [
        b"", b"null", b"[]", b"{}", b"\xff", b"[" * 5000, b"1e999", b"NaN",
        GOOD_HEADER.replace(b'"key":', b'"kee":'),
        GOOD_HEADER.replace(b'"arch":', b'"arch":"x","arch":'),
        GOOD_HEADER.replace(b'"arch":"cpu-avx2"', b'"arch":2'),
        GOOD_HEADER.replace(b'"dtypes":["float32","float32"]', b'"dtypes":"float32"'),
        GOOD_HEADER.replace(b'"dtypes":["float32","float32"]', b'"dtypes":["float32",1]'),
        GOOD_HEADER.replace(b'{"symbol":"launch"}', b'["symbol"]'),
        GOOD_HEADER[:-1] + b',"more":1}',
        GOOD_HEADER + b" ",
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_refused_although_its_checksum_is_right(header):
    assert header != GOOD_HEADER
    with pytest.raises(EntryError, match="header"):
        entries.decode(with_header(header))


def test_an_entry_of_another_version_is_refused():
    with pytest.raises(EntryError, match="format"):
        entries.decode(with_header(GOOD_HEADER, version=entries.FORMAT + 1))


def test_an_entry_under_another_name_is_refused(tmp_path):
    path = tmp_path / "entry"
    path.write_bytes(entries.encode(CPU))
    assert entries.load(path, KEY, CPU.compiler, lambda status: None) == CPU
    with pytest.raises(EntryError, match="another variant"):
        entries.load(path, "f" * 64, CPU.compiler, lambda status: None)
    with pytest.raises(EntryError, match="another variant"):
        entries.load(path, KEY, "numba 99", lambda status: None)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "entry"
    path.touch()
    os.truncate(path, entries.LARGEST + 1)
    with pytest.raises(OSError, match="more than"):
        entries.load(path, KEY, None, lambda status: None)


def changed_field(rng: random.Random, launch: dict) -> dict:
    """Launch fields of which one is of another type or out of its range, missing, or new."""
    changed = dict(launch)
    name = rng.choice(sorted(launch))
    wrong = {
        "title": [1, "", None, "a\n", "x" * 9000], "name": [1, "", [], "\0"], "symbol": [1, "", b"x".hex, None],
        "words": [-1, "10", 1.0, True, 2**40], "threads": [0, -1, 4096, 64.0, None, True],
        "shared_bytes": [-1, 2**30, "0", 0.5], "overlaps": [0, 1, "true", None],
        "maps": [{}, "maps", [1], [{}], [{"symbol": "x"}]],
    }  # fmt: skip
    kind = rng.randrange(3)
    if kind == 0:
        del changed[name]
    elif kind == 1:
        changed["more"] = 1
    else:
        changed[name] = rng.choice(wrong[name])
    return changed


def read_launch(entry: Entry):
    """What the entry's target makes of it before it asks its driver."""
    if entry.target == "cuda":
        cuda = pytest.importorskip("rocmkern.targets.cuda")
        return cuda.CompiledKernel.of(entry)
    hip = pytest.importorskip("rocmkern.targets.hip", exc_type=Exception)
    return hip.Executable.of(entry)


@pytest.mark.parametrize("target", ["hip", "cuda"])
def test_launch_fields_are_checked(target):
    entry = ENTRIES[target]
    read = read_launch(entry)
    assert read.words == entry.launch["words"] and read.launch == entry.launch
    rng = random.Random(3)
    for _ in range(500):
        changed = dataclasses.replace(entry, launch=changed_field(rng, dict(entry.launch)))
        with pytest.raises(EntryError):
            read_launch(changed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": 17}, {"at": -1}, {"ndim": 1}, {"ndim": 9}, {"rows": 0}, {"rows": 257}, {"dtype": "float32"},
        {"dtype": ["float16"]}, {"symbol": 3}, {"more": 1},
    ],
)  # fmt: skip
def test_a_tensor_map_lies_within_the_launch(wrong):
    (good,) = CUDA.launch["maps"]
    with pytest.raises(EntryError):
        read_launch(dataclasses.replace(CUDA, launch={**CUDA.launch, "maps": [{**good, **wrong}]}))


def test_code_of_another_kind_is_refused():
    for entry in (dataclasses.replace(HIP, code=b"text"), dataclasses.replace(CUDA, code=b"\x7fELF\xff")):
        with pytest.raises(EntryError, match="code"):
            read_launch(entry)


def test_a_key_says_all_of_its_entry():
    key = source.Key.of(CPU)
    assert (key.target, key.digest, key.dtypes) == ("cpu", KEY, CPU.dtypes)


# ------------------------------------------------------------------------------------------------------- machine code


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The object of a small kernel."""
    import target_kernels as k

    from rocmkern.targets import cpu, host_cpu

    if not host_cpu.is_x86_64():
        pytest.skip("this processor's objects are LLVM's to load")
    return cpu.compile_entry(k.square, k.Config(arch="cpu-portable"), ("float32", "float32")).code


def test_an_object_asks_for_libm_and_libc_only(code):
    assert elf.undefined(code) <= elf.EXTERNAL


def test_changed_objects_do_not_crash_the_loader(code):
    """As if somebody had made a right checksum for them. They are loaded or refused, and nothing of them runs."""
    seed = random.SystemRandom().randrange(2**32)
    rng, refusals = random.Random(seed), 0
    for number in range(2000):
        try:
            elf.load(mutated(code, rng), "rocmkern_launch")
        except elf.ElfError:
            refusals += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, change {number}") from error
    assert refusals > 500


def memory_map():
    """Pages of this process and their rights: (start, end, rights)."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        spans = [line.split()[:2] for line in maps]
    return {(*(int(end, 16) for end in span.split("-")), rights[:3]) for span, rights in spans}


def test_no_page_can_be_written_and_executed(code):
    both_before = {span for span in memory_map() if span[2] == "rwx"}
    loaded = elf.load(code, "rocmkern_launch")
    spans = memory_map()
    assert [rights for start, end, rights in spans if start <= loaded.address < end] == ["r-x"]
    last = loaded.address + len(loaded.memory) - 1
    assert [rights for start, end, rights in spans if start <= last < end] == ["r--"]
    assert {span for span in spans if span[2] == "rwx"} <= both_before


def test_a_name_that_is_not_of_libm_or_libc_is_refused(code):
    name = next(name for name in elf.undefined(code) if len(name) == 6)  # malloc, memset
    changed = code.replace(name.encode() + b"\0", b"system\0")
    with pytest.raises(elf.ElfError, match="system"):
        elf.load(changed, "rocmkern_launch")


def test_llvm_loads_what_this_loader_does_not(code, monkeypatch):
    import target_kernels as k

    from rocmkern.targets import objects

    def unsupported(*arguments):
        raise elf.UnsupportedElf("as on another processor")

    monkeypatch.setattr(objects.elf, "load", unsupported)
    run = objects.launch_function(code, "rocmkern_launch", "square")
    x = k.data(8)
    out = x * 0
    words = objects.words_layout(10).pack(x.ctypes.data, 8, 32, 128, 4, out.ctypes.data, 8, 32, 128, 4)
    run(words, 2, 1, 0, 2)
    assert k.is_right(out, x)
    foreign = code.replace(b"malloc\0", b"system\0")
    with pytest.raises(elf.ElfError, match="system"):
        objects.launch_function(foreign, "rocmkern_launch", "square")
