"""Code objects: what is read from them, whichever linker made them; linkers that are there, missing, old or broken."""

from __future__ import annotations

import ctypes
import lzma
import stat
import struct
from pathlib import Path

import pytest

from rocmkern.runtime.errors import TargetError
from rocmkern.targets import amd_llvm, code_object, linkers, msgpack

RECORDED = sorted((Path(__file__).parent / "recorded").glob("softmax-*.co.xz"))


def recorded(path):
    with lzma.open(path) as file:
        return file.read()


@pytest.fixture(scope="module")
def softmax():
    return recorded(RECORDED[0])


# Reading


def test_code_is_equal_whichever_linker_was_used():
    """One object, linked by comgr 2.4, 2.6 and 3.0 (of LLVM 15, 17 and 21) and by LLD 19 and 22."""
    contents = [code_object.read(recorded(path)) for path in RECORDED]
    assert len(contents) == len({each.sha256 for each in contents}) == 5
    assert len({each.code_sha256 for each in contents}) == 1


def test_every_byte_of_code_descriptor_and_metadata_counts(softmax):
    contents = code_object.read(softmax)
    kernel = contents.kernels[0]
    text = softmax.index(contents.text)
    descriptor = softmax.index(
        struct.pack("<III", kernel[".group_segment_fixed_size"], 0, kernel[".kernarg_segment_size"])
    )
    note = softmax.index(b".max_flat_workgroup_size")
    for at in (text, text + len(contents.text) - 1, descriptor + 48, note + 5):
        damaged = bytearray(softmax)
        damaged[at] ^= 1
        try:
            assert code_object.read(bytes(damaged)).code_sha256 != contents.code_sha256
        except TargetError:
            continue


def test_what_stands_in_a_code_object(softmax):
    contents = code_object.read(softmax)
    (kernel,) = contents.kernels
    assert (contents.target, contents.version) == ("gfx1100", 5)
    assert (kernel[".vgpr_count"], kernel[".wavefront_size"], kernel[".private_segment_fixed_size"]) == (32, 32, 0)
    start, size = contents.symbols[kernel[".name"]]
    assert start == 0 and 0 < size <= len(contents.text)


@pytest.mark.parametrize("length", [0, 3, 16, 63, 64, 200, 1000, 3000])
def test_a_code_object_that_is_cut_is_an_error(softmax, length):
    with pytest.raises(TargetError, match=rf"these {length} bytes are no code object of an AMD GPU"):
        code_object.read(softmax[:length])


def test_another_elf_file_is_an_error():
    with open("/proc/self/exe", "rb") as file, pytest.raises(TargetError, match="no code object"):
        code_object.read(file.read())


@pytest.mark.parametrize(
    ("arch", "version"), [("gfx1100", 5), ("gfx942:sramecc+:xnack-", 5), ("gfx11-generic", 6), ("gfx9-4-generic", 6)]
)
def test_the_container_is_the_oldest_that_has_the_architecture(arch, version):
    assert code_object.container_version(arch) == version


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x05", 5), (b"\xff", -1), (b"\xcd\x01\x00", 256), (b"\xd3" + b"\xff" * 8, -1), (b"\xc3", True),
        (b"\xc0", None), (b"\xde\x00\x01\x01\x02", {1: 2}),
        (b"\xa2hi", "hi"), (b"\xd9\x02hi", "hi"), (b"\xc4\x01\x00", b"\0"), (b"\x92\x01\x02", [1, 2]),
        (b"\xdc\x00\x01\xa1x", ["x"]), (b"\x81\xa1k\x93\x01\x02\x03", {"k": [1, 2, 3]}),
        (b"\xcb" + struct.pack(">d", 0.5), 0.5),
    ],
)  # fmt: skip
def test_messagepack_is_read(data, value):
    assert msgpack.unpack(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"\xa5hi", b"\x92\x01", b"\xc1", b"\xdb\xff\xff\xff\xffx", b"\x81\x90\x01", b"\x91" * 5000]
)
def test_what_is_no_messagepack_is_an_error(data):
    with pytest.raises(ValueError, match="no MessagePack"):
        msgpack.unpack(data)


# Linkers that are not what they should be


class StandIn:
    """A comgr that links by giving back what it was given, and remembers the number of the action."""

    def __init__(self, version, knows=("gfx1100",), fails=0):
        self.numbers, self.knows, self.fails, self.actions, self.alive = version, knows, fails, [], 0

    def amd_comgr_get_version(self, major, minor):
        major._obj.value, minor._obj.value = self.numbers

    def amd_comgr_status_string(self, status, words):
        words._obj.value = b"ERROR"

    def amd_comgr_set_data(self, data, size, content):
        self.content = bytes(content)
        return 0

    def amd_comgr_action_info_set_isa_name(self, info, name):
        return 0 if any(name.endswith(b"--" + each.encode()) for each in (*self.knows, "gfx900")) else 2

    def amd_comgr_do_action(self, action, info, inputs, outputs):
        self.actions.append(action)
        return self.fails

    def amd_comgr_get_data(self, data, size, content):
        size._obj.value = len(self.content)
        if content is not None:
            ctypes.memmove(content, self.content, len(self.content))
        return 0

    def __getattr__(self, name):
        if "create" in name or name == "amd_comgr_action_data_get_data":
            self.alive += 1
        elif "release" in name or "destroy" in name:
            self.alive -= 1
        return lambda *_: 0


@pytest.mark.parametrize(("version", "action"), [((2, 4), 9), ((2, 8), 9), ((3, 0), 7)])
def test_each_generation_of_comgr_has_its_own_number_for_linking(version, action):
    library = StandIn(version)
    assert linkers.link_by_comgr(b"object", "gfx1100", linkers.Comgr(library, version)) == b"object"
    assert library.actions == [action] and library.alive == 0


def test_a_comgr_older_than_the_card_links_under_another_name():
    library = StandIn((2, 4))
    assert linkers.link_by_comgr(b"object", "gfx1201", linkers.Comgr(library, (2, 4))) == b"object"


def test_what_comgr_says_is_in_the_error_and_nothing_of_it_stays_alive():
    library = StandIn((2, 4), fails=1)
    library.amd_comgr_set_data(None, None, b"unknown abi version")
    with pytest.raises(TargetError, match=r"comgr 2\.4 does not link it: ERROR"):
        linkers.link_by_comgr(b"object", "gfx1100", linkers.Comgr(library, (2, 4)))
    assert library.alive == 0


@pytest.fixture
def no_linker(monkeypatch, tmp_path):
    """A machine without comgr, without LLD."""
    for name in ("ROCM_PATH", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv(linkers.VARIABLE, raising=False)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr(amd_llvm, "library_path", lambda name: str(tmp_path / f"lib{name}.so"))
    linkers._lld_version.cache_clear()
    linkers.open_comgr.cache_clear()
    yield tmp_path
    linkers._lld_version.cache_clear()
    linkers.open_comgr.cache_clear()


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def lld_of(version, link='while [ "$1" != -o ]; do shift; done; cp "$3" "$2"'):
    return f'if [ "$1" = --version ]; then echo "LLD {version}.1.0 (compatible with GNU linkers)"; exit; fi\n{link}'


def test_without_any_linker_the_error_says_what_to_install(no_linker):
    with pytest.raises(TargetError) as caught:
        linkers.link(b"object", "gfx1100", 5)
    words = str(caught.value)
    for part in (
        "gfx1100",
        "comgr cannot be loaded",
        "no ld.lld was found",
        "libamd-comgr",
        'pip install "rocmkern[lld]"',
    ):
        assert part in words


def test_an_lld_that_is_too_old_is_passed_over_by_name(no_linker):
    program(no_linker / "ld.lld", lld_of(14))
    with pytest.raises(TargetError, match=r"needs LLD 15 or newer; .*/ld\.lld is of version 14"):
        linkers.link(b"object", "gfx1100", 5)
    program(no_linker / "ld.lld-15", lld_of(15))
    assert linkers.lld(5).version == 15
    with pytest.raises(TargetError, match="code object version 6 needs LLD 19 or newer"):
        linkers.lld(6)
    with pytest.raises(TargetError, match=r"version 6 needs LLD 19 .* Remedy: .* an LLD of LLVM 19 or newer"):
        linkers.link(b"object", "gfx11-generic", 6)


@pytest.mark.parametrize("place", ["llvm/bin/ld.lld", "lib/llvm/bin/ld.lld", "ld.lld", "ld.lld-21", "ziglang/zig"])
def test_an_lld_is_found_where_it_may_be(no_linker, place):
    zig = place.endswith("zig")
    program(no_linker / place, ("shift\n" if zig else "") + lld_of(22))
    found = linkers.lld(5)
    assert found.command == ((str(no_linker / place), "ld.lld") if zig else (str(no_linker / place),))
    assert found.version == 22


def test_the_variable_names_the_only_lld(no_linker, monkeypatch):
    program(no_linker / "ld.lld", lld_of(22))
    mine = program(no_linker / "mine", lld_of(18))
    monkeypatch.setenv(linkers.VARIABLE, str(mine))
    assert linkers.lld(5).command == (str(mine),)
    monkeypatch.setenv(linkers.VARIABLE, str(no_linker / "not_there"))
    with pytest.raises(TargetError, match="not_there does not run"):
        linkers.lld(5)


def test_what_lld_says_is_in_the_error(no_linker):
    program(no_linker / "ld.lld", lld_of(22, "echo 'ld.lld: error: bad object' >&2; exit 1"))
    with pytest.raises(TargetError, match=r"LLD 22 .* does not link it: ld\.lld: error: bad object"):
        linkers.link(b"object", "gfx1100", 5)


def test_an_lld_that_is_no_program_is_an_error(no_linker):
    program(no_linker / "ld.lld", "exit 3")
    with pytest.raises(TargetError, match=r"ld\.lld does not run"):
        linkers.lld(5)


# The real ones


def bitcode_or_skip():
    """Bitcode of an empty kernel."""
    try:
        llvm = amd_llvm._llvm()
    except TargetError as error:
        pytest.skip(str(error))
    text = b"""target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @empty() #0 { ret void }
attributes #0 = { "target-cpu"="gfx1100" }
"""
    llvm.LLVMWriteBitcodeToMemoryBuffer.restype = ctypes.c_void_p
    with amd_llvm._context(llvm) as (context, _):
        module, message = ctypes.c_void_p(), ctypes.c_void_p()
        source = ctypes.c_void_p(
            llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy(text, ctypes.c_size_t(len(text)), b"text")
        )
        assert not llvm.LLVMParseIRInContext(context, source, ctypes.byref(module), ctypes.byref(message))
        buffer = ctypes.c_void_p(llvm.LLVMWriteBitcodeToMemoryBuffer(module))
        bitcode = ctypes.string_at(llvm.LLVMGetBufferStart(buffer), llvm.LLVMGetBufferSize(buffer))
        llvm.LLVMDisposeMemoryBuffer(buffer)
        llvm.LLVMDisposeModule(module)
    return bitcode


def test_bitcode_becomes_the_same_code_by_every_linker_of_this_machine():
    made = amd_llvm.emit_object(bitcode_or_skip(), "gfx1100", 5)
    usable = [each for each in linkers.found(5) if not isinstance(each, str)]
    if not usable:
        pytest.skip("no linker")
    links = {linkers.Comgr: lambda each: linkers.link_by_comgr(made, "gfx1100", each),
             linkers.Lld: lambda each: linkers.link_by_lld(made, each)}  # fmt: skip
    contents = [code_object.read(links[type(each)](each)) for each in usable]
    assert len({each.code_sha256 for each in contents}) == 1
    assert contents[0].version == 5 and contents[0].kernels[0][".name"] == "empty"
    assert "s_endpgm" in code_object.assembly(links[type(usable[0])](usable[0]))


def test_bytes_that_are_no_bitcode_are_an_error_and_no_end_of_the_process():
    bitcode_or_skip()
    with pytest.raises(TargetError, match=r"LLVM .* for gfx1100: the bitcode cannot be read"):
        amd_llvm.emit_object(b"no bitcode at all", "gfx1100", 5)
