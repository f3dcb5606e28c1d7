"""Linear layers, MLPs and a decoder whose weights are cut among ranks are those of one process."""

import dataclasses

import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

from by_ranks import check_decoder, check_linears, check_mlp, normal

import rocmkern
from rocmkern.decoder import DecoderConfig, QuantizedWeight
from rocmkern.distributed import shard_decoder, shard_linear
from rocmkern.runtime.errors import ArgumentError


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_and_then_rows(ranks, size, sequence):
    check_linears(ranks, size, sequence)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("form", [None, "q4_0", "q8_0"])
def test_an_mlp(ranks, form, sequence):
    check_mlp(ranks, 4, form, sequence)


CONFIG = DecoderConfig(50, 64, 128, 2, 8, 4, 8, rope_base=500.0)


@pytest.mark.parametrize(("size", "kv_heads", "form", "tied"), [
    (1, 4, None, False), (2, 4, None, False), (4, 4, None, True), (4, 2, None, False), (2, 4, "q8_0", False),
])  # fmt: skip
def test_a_decoder_over_ranks_draws_the_same_tokens(ranks, size, kv_heads, form, tied):
    check_decoder(ranks, size, dataclasses.replace(CONFIG, num_kv_heads=kv_heads), form, tied)


def test_what_cannot_be_cut_is_refused():
    block = QuantizedWeight(rocmkern.quantize(normal(8, 64), "q4_0"), "q4_0")
    with pytest.raises(ArgumentError, match="for each of 4 ranks"):
        shard_linear(block, "rows", rank=0, size=4)
    with pytest.raises(ArgumentError, match="end between blocks"):
        shard_linear(block, "rows", unit=8, rank=0, size=4)
    with pytest.raises(ArgumentError, match="multiple of unit"):
        shard_linear(normal(10, 4), "columns", unit=4, rank=0, size=2)
    with pytest.raises(ArgumentError, match="6 heads"):
        shard_decoder({}, dataclasses.replace(CONFIG, num_heads=6, num_kv_heads=2), rank=0, size=4)
    with pytest.raises(ArgumentError, match="by"):
        shard_linear(normal(4, 4), "heads", rank=0, size=2)
