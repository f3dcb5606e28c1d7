"""`rocmkern compile`: what it finds, what it leaves alone, where it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import rocmkern
from rocmkern import cli
from rocmkern.cli import _common_calls
from rocmkern.cli._variants import VariantRecorder
from rocmkern.decoder import Decoder, DecoderConfig
from rocmkern.targets import cache, entries, launching_on
from rocmkern.targets.host_cpu import host_architecture, is_x86_64


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ROCMKERN_QUIET", "1")


ONE = ["compile", "--target", "cpu", "--ops", "scale", "--dtypes", "float32", "--jobs", "1"]


def test_variants_are_compiled_once_and_used(tmp_path, capsys):
    assert cli.main(ONE) == 0
    assert "1 compiled in" in capsys.readouterr().out
    assert cli.main(ONE) == 0
    assert "1 of them in" in capsys.readouterr().out
    program = """
import json, sys
import numpy as np
import rocmkern
out = rocmkern.scale(np.ones((3, 5), np.float32), 2.0)
print(json.dumps([float(out.sum()), "numba" in sys.modules, "llvmlite" in sys.modules]))
"""
    environment = {**os.environ, "ROCMKERN_TARGET": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [30.0, False, False] and done.stderr == ""


def test_variants_are_listed_without_compiling(tmp_path, capsys):
    assert cli.main([*ONE, "--list"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{host_architecture():<12} scale") and "float32,float32" in line
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(not is_x86_64(), reason="the architectures are those of x86-64")
def test_a_wheel_s_directory_holds_what_it_needs_and_nothing_else(tmp_path, capsys):
    directory = tmp_path / "shipped"
    directory.mkdir()
    (directory / "cpu-old-0123.entry").write_bytes(b"of an older version")
    assert cli.main([*ONE, "--arch", "cpu-avx2,cpu-avx512", "--into", str(directory)]) == 0
    made = [entries.decode(path.read_bytes()) for path in directory.iterdir()]
    assert sorted(entry.arch for entry in made) == ["cpu-avx2", "cpu-avx512"]
    for entry in made:
        assert (directory / cache.shipped_name(cache.Key.of(entry))).stat().st_mode & 0o777 == 0o644
        assert ("avx512f" in entry.machine) == (entry.arch == "cpu-avx512")


def test_the_common_calls_can_be_recorded(capsys):
    arguments = ["compile", "--target", "cpu", "--common", "--list"]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    kernels = {line.split()[1] for line in lines}
    assert {"flash_attention", "matmul", "rms_norm", "layer_norm", "rope", "sample", "embedding"} <= kernels
    assert all(any(dtype in line for line in lines) for dtype in ("float32", "float16", "bfloat16"))
    assert len(lines) < 300


def decoders_calls(dtype, heads, kv_heads, head_dim):
    """Those of `Decoder`: prompts alone and together, and one token, which is what follows a prompt."""
    hidden, q_rows, kv_rows = 8 * head_dim, heads * head_dim, kv_heads * head_dim
    config = DecoderConfig(50, hidden, 2 * hidden, 1, heads, kv_heads, head_dim)
    shapes = {"embedding": (50, hidden), "norm": (hidden,), "output": (50, hidden)}
    layer = {"attention_norm": (hidden,), "q": (q_rows, hidden), "k": (kv_rows, hidden), "v": (kv_rows, hidden)}
    layer |= {"o": (hidden, q_rows), "mlp_norm": (hidden,), "down": (hidden, 2 * hidden)}
    layer |= {"gate": (2 * hidden, hidden), "up": (2 * hidden, hidden)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    decoder = Decoder(config, {name: np.zeros(shape, dtype) for name, shape in shapes.items()})
    for prompts in ([[1]], [[1, 2, 3], [4] * 40], [[5] * 300]):
        decoder.generate(prompts, 1, seed=0)  # no second token: what is recorded draws nothing
        decoder.generate(prompts, 1, seed=range(len(prompts)), temperature=0.8, top_k=40, top_p=0.9)


def models_calls(dtype):
    """Calls of models of other sizes than those that are recorded."""
    draw = np.zeros

    def zeros(*shape):
        return draw(shape, dtype)

    for tokens in (1, 3, 37, 300):
        positions, ends, length = np.arange(tokens), np.array([0, tokens], np.int32), np.array([tokens], np.int32)
        pages = np.arange(-(-tokens // 16), dtype=np.int32)
        for heads, kv_heads, head_dim in ((8, 8, 64), (12, 4, 128), (32, 8, 64), (16, 2, 96)):
            q, k = zeros(1, heads, tokens, head_dim), zeros(1, kv_heads, tokens, head_dim)
            rocmkern.flash_attention(q, k, k)
            rocmkern.flash_attention(q, k, k, causal=True)
            rocmkern.rope(zeros(tokens, heads, head_dim), positions.astype(np.int32))
            cache = zeros(len(pages), 16, kv_heads, head_dim)
            packed = zeros(tokens, heads, head_dim)
            rocmkern.paged_attention(packed, cache, cache, pages[None], length, cu_seqlens_q=ends)
            for keys in (40, 700, 5000):
                k = zeros(1, kv_heads, keys, head_dim)
                rocmkern.decode_attention(zeros(1, heads, 1, head_dim), k, k)
        for width in (384, 768, 1536, 2048, 3072, 4096, 5120):
            x, weight = zeros(tokens, width), zeros(width)
            rocmkern.rms_norm(x, weight)
            rocmkern.rms_norm(x, weight, residual=x)
            rocmkern.layer_norm(x, weight, weight)
            rocmkern.softmax(x)
            rocmkern.swiglu(x, x)
            rocmkern.linear(x, zeros(512, width), bias=zeros(512))
            rocmkern.mlp(x, zeros(768, width), zeros(768, width), zeros(width, 768))
    for heads, kv_heads, head_dim in ((4, 2, 64), (8, 8, 128)):
        decoders_calls(dtype, heads, kv_heads, head_dim)
    rocmkern.sample(zeros(2, 1000), seed=0)
    rocmkern.sample(zeros(2, 1000), seed=0, top_k=40, top_p=0.9, temperature=0.7)


@pytest.mark.parametrize("arch", ["cpu-avx512", "cpu-avx2"])
@pytest.mark.parametrize("dtype", _common_calls.DTYPES)
def test_a_wheel_has_what_models_of_other_sizes_call(dtype, arch):
    brought, called = VariantRecorder(arch, "cpu"), VariantRecorder(arch, "cpu")
    with launching_on(brought):
        _common_calls.make_calls(dtype)
    for called.parallelism in (2, 16):  # threads of the machine: what is split follows from it
        with launching_on(called):
            models_calls(_common_calls.DTYPES[dtype])
    lacking = [f"{each.name} {each.features}" for each in called.found.keys() - brought.found.keys()]
    assert len(called.found) > 30 and not lacking


@pytest.mark.parametrize(
    "wrong, words",
    [
        (["--ops", "scales"], "--ops: got scales; allowed: "),
        (["--dtypes", "float8"], "--dtypes: got float8; allowed: float32"),
        (["--jobs", "0"], "--jobs: got 0"),
        (["--arch", "cpu-sse9"], "--arch: got cpu-sse9; allowed: cpu-avx2, cpu-avx512, cpu-portable\n"),
        (["--arch", "gfx1100"], "--arch: got gfx1100; allowed: cpu-avx2, "),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, wrong, words):
    assert cli.main(["compile", "--target", "cpu", *wrong]) == 2
    assert words in capsys.readouterr().err
