"""A model of Transformers whose tokens are shared out gives the logits of the whole model."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")
pytest.importorskip("transformers", reason="the tests run models of Transformers")

from rocmkern.distributed import join_sequence


@pytest.mark.parametrize(("split", "mode"), [("contiguous", "ring"), ("zigzag", "ring"), ("zigzag", "heads")])
@pytest.mark.parametrize("window", [None, 7])
def test_a_model_over_ranks(ranks, split, mode, window):
    results = ranks.call("steps:llama", [(split, mode, window, 37)] * 2)
    whole = results[0][1]
    joined = join_sequence([own for own, _ in results], split=split)
    np.testing.assert_allclose(joined, whole, atol=2e-5 * np.abs(whole).max())
