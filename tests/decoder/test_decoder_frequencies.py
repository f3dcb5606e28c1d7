"""Factors of the frequencies: one for each pair, finite and positive, and as the configuration scales."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from small_checkpoints import CONFIG

from rocmkern.decoder.frequencies import read_factors, rotation
from rocmkern.runtime.errors import CheckpointError

LINEAR = {"rope_type": "linear", "factor": 2.0}


def test_without_factors_the_configuration_counts():
    config = dataclasses.replace(CONFIG, rope_scaling=LINEAR, rope_variant="interleaved")
    assert rotation(config, None) == {"variant": "interleaved", "base": 500.0, "scaling": LINEAR}


def test_factors_take_the_place_of_a_scaling():
    turned = {"variant": "half", "base": 500.0, "freq_factors": (1.0, 2.0, 3.0, 4.0)}
    assert rotation(CONFIG, np.array([1, 2, 3, 4], np.float16)) == turned


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.ones(5), "has shape (5,); a head has 4 frequencies"),
        (np.ones(3), "has shape (3,); a head has 4 frequencies"),
        (np.ones((1, 4)), "has shape (1, 4); a head has 4 frequencies"),
        (np.array([1, 0, 1, -1.0]), "has 0.0 at index 1, not a finite positive number"),
        (np.array([1, 1, 1, -1.5]), "has -1.5 at index 3, not a finite positive number"),
        (np.array([np.nan, 0, 1, 1]), "has nan at index 0, not a finite positive number"),
        (np.array([1, 1, np.inf, 1]), "has inf at index 2, not a finite positive number"),
    ],
)
def test_factors_of_nothing(factors, message):
    with pytest.raises(CheckpointError) as caught:
        rotation(CONFIG, factors)
    assert str(caught.value) == f"rope_freqs.weight {message}"


@pytest.mark.parametrize(("off", "agrees"), [(0, True), (0.9e-4, True), (-0.9e-4, True), (1.1e-4, False)])
def test_a_scaling_beside_factors_gives_the_same_ones(off, agrees):
    """As far as float32 computes them: a ten-thousandth."""
    config, factors = dataclasses.replace(CONFIG, rope_scaling=LINEAR), np.array([2, 2, 2 * (1 + off), 2])
    if agrees:
        assert rotation(config, factors) == rotation(CONFIG, factors)
    else:
        with pytest.raises(CheckpointError) as caught:
            rotation(config, factors + [0, 1, 0, 0])
        assert str(caught.value) == (
            "rope_freqs.weight divides the frequencies by 2 to 3, which is not what rope_scaling={'rope_type': "
            "'linear', 'factor': 2.0} does: leave rope_scaling out, for the file's own factors are used"
        )
        with pytest.raises(CheckpointError):
            rotation(config, factors)


def test_a_scaling_of_attention_is_none_of_frequencies():
    """YaRN multiplies q and k too, which no factor of a file says."""
    yarn = {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 64, "attention_factor": 1.5}
    config = dataclasses.replace(CONFIG, rope_scaling=yarn)
    with pytest.raises(CheckpointError, match="is not what"):
        rotation(config, np.ones(4))
    rotation(dataclasses.replace(CONFIG, rope_scaling=yarn | {"attention_factor": 1.0}), np.ones(4))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_factors_of_a_file_of_any_float_dtype_are_read_piece_by_piece(dtype):
    pieces = [np.array([[1], [2]], dtype), np.array([[3], [4]], dtype)]
    tensor = SimpleNamespace(name="x", format=None, dtype=np.dtype(dtype), pieces=lambda: iter(pieces))
    factors = read_factors(tensor, CONFIG)
    assert factors.dtype == np.float32 and factors.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("format", "dtype", "said"), [(None, np.int32, "int32"), ("q4_0", np.uint8, "q4_0")])
def test_factors_that_are_no_floats_are_refused(format, dtype, said):
    tensor = SimpleNamespace(name="rope_freqs.weight", format=format, dtype=np.dtype(dtype), pieces=None)
    with pytest.raises(CheckpointError) as caught:
        read_factors(tensor, CONFIG)
    assert str(caught.value) == f"rope_freqs.weight is {said}, not a float dtype"
