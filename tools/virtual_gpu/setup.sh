#!/bin/bash
# Real numba-hip with vgpu by pip alone: no ROCm, no root, no Debian userland; x86-64 Linux with glibc >= 2.28 (seen: Debian 12 with Python 3.11, forky with 3.14).
#   setup.sh TARGET_DIR          (idempotent; about a minute, 1 GB; then TARGET_DIR/run COMMAND...)
# Environment: PYTHON=python3 for the venv.  EXTRA_PIP="pkg ..." more packages.  FORCE=1 makes the venv anew.
#   CC="..." the C compiler for the stubs (default: cc, gcc or clang; CC=zig, or none found: the wheel `ziglang`).
# What ROCm would give, and where it comes from here:
#   libamdhip64     the stub, built against a header generated from the bindings' own declarations (their .pxd and enumerations)
#   libamd_comgr    a stand-in: version 0, no architectures, compiles and links nothing (numba-hip reads its ISA table at import);
#                   vgpu.install() answers the one question that numba-hip asks its compiler: target-cpu and target-features of an empty function
#   linker          ld.lld of the host, 15 or newer (NO_LLD=1: not that one), or else LLD in the wheel `ziglang`
#   libclang        the wheel `libclang` (18.1); vgpu.install() lets the bindings' cindex do without the six functions that it lacks. numba-hip
#                   parses the hipRTC header with it at import
#   hiprtc-builtins a short header of declarations, so that the import finds the names it needs. Not the real one: see README, "Set-up by pip"
#   zlib, zstd      trampolines to the system's, under the symbol versions that the wheel's libLLVM asks for (used for compressed debug sections only)
#   device libraries (bitcode)  nothing: needed only by kernels that call numba-hip's device library
# The emulator (tinygrad) compiles with the host's clang, or else with ziglang's (bin/clang-zig). Not with the libLLVM of the bindings: tinygrad's LLVM
# renderer rounds twice in f16 fma, and more. So a host with cc, clang and ld.lld does without ziglang (101 MB to download, 411 MB on disk).
set -euo pipefail
T=${1:?usage: setup.sh TARGET_DIR}; HERE=$(cd "$(dirname "$0")" && pwd); mkdir -p "$T/bin" "$T/rocm"; T=$(cd "$T" && pwd); T0=$(date +%s)
say() { echo "[$(( $(date +%s) - T0 ))s] $*"; }
[ -z "${FORCE:-}" ] || rm -rf "$T/venv"
PIP=(numba-hip numpy libclang pyyaml filelock pydantic ml_dtypes pytest pytest-benchmark ${EXTRA_PIP:-})
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [ ! -e "$T/.venv-done" ] || [ ! -x "$T/venv/bin/python" ]; then
  say "venv"; "${PYTHON:-python3}" -m venv "$T/venv"
  "$T/venv/bin/pip" install -q "${PIP[@]}" > "$T/pip.log" 2>&1 || { tail -8 "$T/pip.log" >&2; exit 1; }
  date > "$T/.venv-done"
fi
# --- C compiler and linker
CLANG=$(command -v clang || for v in $(seq 30 -1 15); do command -v clang-$v && break; done || true)
CC=${CC:-$(command -v cc || command -v gcc || echo "${CLANG:-zig}")}
LLD=$(command -v ld.lld || for v in $(seq 30 -1 15); do command -v ld.lld-$v && break; done || true)
[ -n "$LLD" ] && [ -z "${NO_LLD:-}" ] && [ "$("$LLD" --version | sed -n 's/.*LLD \([0-9]*\).*/\1/p')" -ge 15 ] || LLD=      # 14 does not know code object version 5
if [ "$CC" = zig ] || [ -z "$LLD" ] || [ -z "$CLANG" ]; then
  ls "$T"/venv/lib/python3*/site-packages/ziglang/zig > /dev/null 2>&1 || { say "no C compiler, clang or ld.lld: the wheel ziglang"; "$T/venv/bin/pip" install -q ziglang >> "$T/pip.log" 2>&1 || { tail -8 "$T/pip.log" >&2; exit 1; }; }
  Z=$(echo "$T"/venv/lib/python3*/site-packages/ziglang/zig); ln -sfn "$Z" "$T/bin/zig"; [ "$CC" != zig ] || CC="$Z cc"
fi
if [ -z "$CLANG" ]; then
  CLANG=$T/bin/clang-zig; cat > "$CLANG" <<'EOS'
#!/bin/sh
# tinygrad's clang command line (C from stdin, object to stdout) for zig cc
t=$(mktemp -d); n=$#
while [ $n -gt 0 ]; do a=$1; shift; n=$((n - 1)); case "$a" in --target=*|-|-o|-x|c|-c) ;; *) set -- "$@" "$a";; esac; done
cat > "$t/a.c"; "${0%/*}/zig" cc -target x86_64-freestanding-none "$@" -g0 -fomit-frame-pointer -fno-sanitize=undefined -fno-stack-protector -c -o "$t/a.o" "$t/a.c" && cat "$t/a.o"; r=$?; rm -r "$t"; exit $r
EOS
  chmod +x "$CLANG"
fi
rm -f "$T/bin/ld.lld"
if [ -n "$LLD" ]; then ln -s "$LLD" "$T/bin/ld.lld"; else printf '#!/bin/sh\nexec "%s/bin/zig" ld.lld "$@"\n' "$T" > "$T/bin/ld.lld"; chmod +x "$T/bin/ld.lld"; fi
say "compiler: $CC; linker: $("$T/bin/ld.lld" --version)"
# --- virtual GPU, and the tree that ROCM_PATH names
say "stubs"
"$T/venv/bin/python" "$HERE/pip_tree.py" "$T/rocm" "$HERE" $CC
SP=$(ls -d "$T"/venv/lib/python3*/site-packages | head -1); printf '%s\n' "$HERE" 'import os; os.environ.get("VGPU_AUTO") and __import__("vgpu").install()' > "$SP/vgpu-path.pth"
cat > "$T/run" <<EOS
#!/bin/sh
# run CMD...   run CMD with this set-up's Python and stubs; the environment passes through. TINYGRAD (a checkout) is needed to run kernels.
export PATH="$T/bin:$T/venv/bin:\$PATH" ROCM_PATH="$T/rocm" HIP_PYTHON_HIPRTC_RUNTIME_HEADER="$T/rocm/hiprtc_runtime.h" VGPU_LLD="$T/bin/ld.lld"
export CC="$CLANG" CACHEDB="$T/tinygrad.db"     # tinygrad's compiler, and its cache, which does not ask which compiler it was
exec "\$@"
EOS
chmod +x "$T/run"
say "check"
"$T/run" python -c 'import vgpu; vgpu.install(); import numba.hip as h, numba; print("numba", numba.__version__, "- numba.hip imports -", h.gpus[0].name)'
say "done: $(du -sh "$T" | cut -f1)"
echo "Run something in it:   TINYGRAD=/path/to/tinygrad VGPU_AUTO=1 $T/run python program.py"
