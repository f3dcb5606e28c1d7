"""Instructions that the emulator lacks or does wrong, executed as they must be: against NumPy, from LLVM's assembler."""

import ctypes
import os
import struct

os.environ.setdefault("VGPU_DEVICES", "gfx1100:1GiB,gfx942:1GiB,gfx90a:1GiB")

import numpy as np
import pytest
import vgpu

from rocmkern.targets import amd_llvm, code_object


def build(arch, body, arguments="ptr addrspace(1) %x", declarations=""):
    """Code object of a kernel in LLVM's text form; %i is the lane, %at the address of its 32 bits of %x."""
    wave = 64 if arch.startswith("gfx9") else 32
    text = f"""target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
{declarations}
define amdgpu_kernel void @kernel({arguments}) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %at = getelementptr i32, ptr addrspace(1) %x, i32 %i
  {body}
  ret void
}}
attributes #0 = {{ "target-cpu"="{arch}" "amdgpu-flat-work-group-size"="{wave},{wave}" }}
""".encode()
    llvm = amd_llvm._llvm()
    llvm.LLVMWriteBitcodeToMemoryBuffer.restype = ctypes.c_void_p
    with amd_llvm._context(llvm) as (context, _):
        module, message = ctypes.c_void_p(), ctypes.c_void_p()
        source = ctypes.c_void_p(llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy(text, ctypes.c_size_t(len(text)), b"t"))
        bad = llvm.LLVMParseIRInContext(context, source, ctypes.byref(module), ctypes.byref(message))
        assert not bad, ctypes.string_at(message)
        buffer = ctypes.c_void_p(llvm.LLVMWriteBitcodeToMemoryBuffer(module))
        bitcode = ctypes.string_at(llvm.LLVMGetBufferStart(buffer), llvm.LLVMGetBufferSize(buffer))
    return code_object.build(bitcode, arch)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_dpp_that_writes_the_register_it_reads_reads_all_lanes_first(arch):
    wave = 64 if arch.startswith("gfx9") else 32
    code = build(
        arch,
        """%v = load i32, ptr addrspace(1) %at
  %w = call i32 asm "s_nop 4\\0Av_add_u32_dpp $0, $0, $0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", "=v,0"(i32 %v)
  store i32 %w, ptr addrspace(1) %at""".replace("v_add_u32_dpp", "v_add_nc_u32_dpp" if wave == 32 else "v_add_u32_dpp"),
    )
    x = np.arange(wave, dtype=np.uint32) ** 2
    expected = x + x.reshape(-1, 2)[:, ::-1].ravel()
    vgpu.run_code_object(code, "kernel", 1, wave, [x])
    np.testing.assert_array_equal(x, expected)


def test_a_jump_by_register_arrives():
    code = build(
        "gfx1100",
        """%w = call i32 asm sideeffect "v_mov_b32 $0, 1\\0As_getpc_b64 s[10:11]\\0As_add_u32 s10, s10, 16\\0As_addc_u32 s11, s11, 0\\0As_setpc_b64 s[10:11]\\0Av_mov_b32 $0, 2\\0A", "=v,~{s10},~{s11},~{scc}"()
  store i32 %w, ptr addrspace(1) %at""",
    )
    x = np.zeros(32, np.uint32)
    vgpu.run_code_object(code, "kernel", 1, 32, [x])
    np.testing.assert_array_equal(x, 1)


@pytest.mark.parametrize("arch", ["gfx942", "gfx90a"])
@pytest.mark.parametrize("place", ["v", "a"])
def test_mfma_of_accumulators_denormals_and_infinities(arch, place):
    """``D = A B + C``; the lanes' four halves of A and B come from vector registers or from accumulators."""
    code = build(
        arch,
        f"""%from = getelementptr <4 x half>, ptr addrspace(1) %x, i32 %i
  %other = getelementptr <4 x half>, ptr addrspace(1) %y, i32 %i
  %p = load <4 x half>, ptr addrspace(1) %from
  %q = load <4 x half>, ptr addrspace(1) %other
  %r = call <4 x float> asm "s_nop 7\\0Av_mfma_f32_16x16x16{"_f16" if arch == "gfx942" else "f16"} $0, $1, $2, 0\\0As_nop 15\\0As_nop 15", "=&v,{place},{place}"(<4 x half> %p, <4 x half> %q)
  %to = getelementptr <4 x float>, ptr addrspace(1) %z, i32 %i
  store <4 x float> %r, ptr addrspace(1) %to""",
        "ptr addrspace(1) %x, ptr addrspace(1) %y, ptr addrspace(1) %z",
    )
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    a[3], a[5, 2], b[7, 1] = np.float16(2.0**-20), np.inf, 0.25
    held = [m.reshape(16, 4, 4).transpose(1, 0, 2).reshape(64, 4).copy() for m in (a, b)]
    made = np.zeros((64, 4), np.float32)
    vgpu.run_code_object(code, "kernel", 1, 64, [*held, made])
    if arch == "gfx90a":  # which takes denormals for zeros
        a = np.where(np.abs(a) < 2.0**-14, np.float16(0), a)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64).T
    result = made.reshape(4, 16, 4).transpose(0, 2, 1).reshape(16, 16)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6 if arch == "gfx90a" else 1e-9)
    assert arch == "gfx90a" or np.count_nonzero(result[3])
