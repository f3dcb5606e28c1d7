"""tools/liger_tests.py with a checkout of a few tests of ours, in the form of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="Transformers is not installed")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "liger_tests.py"
HEAD = """
import pytest, torch
from liger_kernel.ops import *
from liger_kernel.transformers.functional import CrossEntropyOutput, liger_fused_linear_cross_entropy
from liger_kernel.transformers.rms_norm import LigerRMSNorm
from liger_kernel.transformers.rope import liger_rotary_pos_emb
from liger_kernel.transformers.swiglu import LigerExperts, LigerFalconH1SwiGLUMLP
from liger_kernel.utils import infer_device, transformers_version_dispatch
from test.utils import supports_bfloat16
torch.manual_seed(0)
x = torch.randn(5, 8, device=infer_device())
"""
NORM = """
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("affine", [True, False])
def test_norm(offset, affine):
    a, b = (x.clone().requires_grad_() for _ in range(2))
    layer = LigerRMSNorm(8, offset=offset, elementwise_affine=affine)
    wanted = torch.nn.functional.rms_norm(b, (8,), eps=1e-6) * (1 + offset if affine else 1)
    torch.testing.assert_close(layer(a), wanted)
    layer(a).square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)

@pytest.mark.skipif(not supports_bfloat16(), reason="no halves")
def test_halves():
    assert LigerRMSNorm(8).bfloat16()(x.bfloat16()).dtype == torch.bfloat16

def test_dtensor_rms_norm():
    raise AssertionError("is left out")
"""
ROPE = """
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

@pytest.mark.parametrize("head_dim, length", [(8, 6), (7, 6), (8, 9000)])
def test_turned(head_dim, length):
    kwargs = {"config": LlamaConfig(head_dim=head_dim), "device": x.device}
    make = transformers_version_dispatch("4.48.0", None, LlamaRotaryEmbedding, before_kwargs={}, after_kwargs=kwargs)
    q, k = torch.randn(2, 1, 3, length, head_dim)
    tables = make(q, torch.arange(length)[None])
    for ours, theirs in zip(liger_rotary_pos_emb(q, k, *tables), apply_rotary_pos_emb(q, k, *tables)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

def test_other_tables_are_refused():
    with pytest.raises(ValueError, match="positions 0, 1"):
        liger_rotary_pos_emb(x[None, None], x[None, None], x.cos(), x.sin())
"""
GATES = """
def test_experts_and_multipliers():
    class Config:
        num_local_experts, hidden_size, intermediate_size, mlp_multipliers = 3, 8, 12, (0.5, 2.0)
    experts, falcon, silu = LigerExperts(Config), LigerFalconH1SwiGLUMLP(Config), torch.nn.functional.silu
    for each in experts.parameters():
        torch.nn.init.normal_(each)
    chosen, weights = torch.tensor([[0, 2]] * 5), torch.rand(5, 2)
    wanted = 0
    for place, e in enumerate((0, 2)):
        gate, up = (x @ experts.gate_up_proj[e].T).chunk(2, -1)
        wanted = wanted + (silu(gate) * up) @ experts.down_proj[e].T * weights[:, place, None]
    torch.testing.assert_close(experts(x, chosen, weights), wanted, rtol=1e-4, atol=1e-4)
    hidden = silu(0.5 * falcon.gate_proj(x)) * falcon.up_proj(x)
    torch.testing.assert_close(falcon(x), 2 * falcon.down_proj(hidden))
"""
LOSS = """
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("has_ce_weight", [True, False])
@pytest.mark.parametrize("return_token_accuracy", [True, False])
def test_loss(reduction, has_ce_weight, return_token_accuracy):
    assert not has_ce_weight
    weight, target = torch.randn(11, 8), torch.tensor([1, -100, 3, 10, 0])
    logits = x @ weight.T
    plain = torch.nn.functional.cross_entropy(logits, target, reduction=reduction)
    z_rows = 0.01 * logits.logsumexp(-1) ** 2 * (target != -100)
    z = {"mean": z_rows.sum() / 4, "sum": z_rows.sum(), "none": z_rows}[reduction]
    found = liger_fused_linear_cross_entropy(
        x, weight, target, reduction=reduction, lse_square_scale=0.01, return_z_loss=True
    )
    assert isinstance(found, CrossEntropyOutput)
    torch.testing.assert_close(found.loss, plain + z)
    torch.testing.assert_close(found.z_loss, z)
    probability = logits.softmax(-1).gather(1, target.clamp(min=0)[:, None])[:, 0]
    scaled = torch.nn.functional.cross_entropy(logits, target, reduction="none") * probability
    found = liger_fused_linear_cross_entropy(x, weight, target, reduction="sum", use_token_scaling=True)
    torch.testing.assert_close(found, scaled.sum())
"""
GEGLU = """
def _test_correctness_direct(bsz, seq_len, hidden_size, intermediate_size, dtype, atol, rtol):
    assert dtype == torch.float32

def _test_correctness_quack_method(bsz, seq_len, hidden_size, intermediate_size):
    assert (bsz, seq_len, hidden_size, intermediate_size) == (1, 2, 3, 4)

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_correctness(dtype):
    _test_correctness_direct(1, 2, 3, 4, dtype, 0, 0)
"""
FILES = {"rms_norm": NORM, "rope": ROPE, "swiglu": GATES, "fused_linear_cross_entropy": LOSS, "geglu": GEGLU}
NAMES = (*FILES, "layer_norm", "fused_add_rms_norm", "softmax", "cross_entropy")


def run(checkout, files, *arguments):
    tests = checkout / "test" / "transformers"
    tests.mkdir(parents=True)
    for name in ("__init__", "conftest", "utils"):
        text = "def supports_bfloat16():\n    return False\n" if name == "utils" else ""
        (checkout / "test" / f"{name}.py").write_text(text)
    for name in NAMES:
        (tests / f"test_{name}.py").write_text(HEAD + files.get(name, ""))
    before = sorted(checkout.rglob("*"))
    command = [sys.executable, str(TOOL), str(checkout), "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert sorted(checkout.rglob("*")) == before  # nothing is written
    return done.returncode, done.stdout + done.stderr


def test_what_is_run_and_what_is_left_out(tmp_path):
    code, text = run(tmp_path, FILES, "--seed", "3")
    assert code == 0, text
    assert "other files than those of commit" in text
    for line in (
        "test_rms_norm::test_norm: 4 passed",
        "test_rms_norm::test_halves: 1 passed",
        "test_rope::test_turned: 2 passed",
        "test_rope::test_other_tables_are_refused: 1 passed",
        "test_fused_linear_cross_entropy::test_loss: 6 passed",
        "test_geglu::test_correctness: 2 passed",
        "left out: an odd head dimension (1)",
        "left out: predicted tokens (6)",
        "left out: a tensor over several ranks (1)",
        "run: without class weights (3)",
        "in all: {'passed': 17}",
    ):
        assert line in text


def test_a_failure_is_told(tmp_path):
    broken = FILES | {"softmax": "def test_wrong():\n    assert LigerRMSNorm(8)(x).sum() == 17.25\n"}
    code, text = run(tmp_path, broken, "--test", "softmax")
    assert code == 1
    assert "test_softmax::test_wrong: 1 failed" in text
    assert "in all: {'failed': 1}" in text


def test_a_sample_and_its_limits(tmp_path):
    code, text = run(tmp_path, FILES, "--test", "test_rope::test_", "--most", "100", "--rows", "2")
    assert code == 0, text
    assert "left out: sizes that multiply to more than 100 (1)" in text
    assert "in all: {'passed': 2}" in text


def test_a_file_that_cannot_be_imported_is_told(tmp_path):
    code, text = run(tmp_path, FILES | {"softmax": "import nothing_of_this_name\n"})
    assert code == 1
    assert "nothing_of_this_name" in text
