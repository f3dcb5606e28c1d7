"""Attention over ranks on cards: NCCL, or RCCL, which PyTorch calls by the same name. One rank a card.

One card is enough for one rank, which has no other to send to; with more, as many ranks as cards are started::

    pytest tests/gate/test_distributed.py
    torchrun --nproc-per-node 2 tests/gate/test_distributed.py
"""

import os

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

import torch
import torch.distributed as dist

from rocmkern import distributed, reference
from rocmkern.distributed.ranks import ranks_of

needs_card = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="no card that PyTorch can use, or no NCCL"
)
CASES = [
    {"causal": True},
    {"causal": True, "split": "zigzag"},
    {"causal": True, "window": (100, 0)},
    {"mode": "heads"},
]


def check(dtype, options):
    """This rank's rows of a call on its card, against float64."""
    rng = np.random.default_rng(0)
    q = torch.from_numpy(rng.standard_normal((1, 8, 777, 64), dtype=np.float32)).to(dtype)
    k, v = (torch.from_numpy(rng.standard_normal((1, 8, 777, 64), dtype=np.float32)).to(dtype) for _ in range(2))
    split = options.get("split", "contiguous")
    own = [distributed.shard_sequence(x, split=split).cuda() for x in (q, k, v)]
    out, lse = distributed.attention(*own, return_lse=True, **options)
    assert out.device == own[0].device and out.dtype == dtype
    meaning = {name: value for name, value in options.items() if name in ("causal", "window")}
    exact, exact_lse = reference.flash_attention(*(x.float().numpy() for x in (q, k, v)), return_lse=True, **meaning)
    error = np.abs(out.float().cpu().numpy() - distributed.shard_sequence(exact, split=split)).max()
    assert error < {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    lse_error = np.abs(lse.cpu().numpy() - distributed.shard_sequence(exact_lse, axis=-1, split=split)).max()
    assert lse_error < 2e-2
    return error


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@needs_card
@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_one_rank_on_a_card(one_rank, dtype, options):
    check(dtype, options)
    assert ranks_of().sent == 0


@needs_card
def test_linear_layers_of_one_rank(one_rank):
    x, weight = torch.randn(16, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    for by in ("columns", "rows"):
        out = distributed.linear(x, distributed.shard_linear(weight, by), by=by)
        assert torch.allclose(out, x @ weight.T, atol=0.1)


def main():
    """One of several ranks that torchrun has started."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    for options in CASES:
        for dtype in (torch.float16, torch.float32):
            print(dist.get_rank(), dtype, options, check(dtype, options))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
