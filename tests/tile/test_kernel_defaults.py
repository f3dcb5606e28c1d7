"""A kernel's configuration without words is its plain variant: what any target runs, with the inputs that it names."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from rocmkern import tile as T
from rocmkern.ops.attention.kernels import combine_splits
from rocmkern.ops.places import kernel_modules

#: What a kernel does where nothing else is said. All other features are off.
USUAL = {
    ("key_value_gradient", "keys"),
    ("key_value_gradient", "values"),
    ("matmul", "transposed"),
    ("layer_norm", "with_weight"),
    ("layer_norm", "with_bias"),
    ("layer_norm_backward", "with_weight"),
    ("layer_norm_backward", "with_bias"),
    ("rms_norm", "with_offset"),
    ("rms_norm_backward", "with_offset"),
}
QUANTIZED = {"dequantize", "dequantize_rms_norm"}


def configs():
    """The configuration class of each kernel that has one of its own."""
    for path in kernel_modules():
        module, short = importlib.import_module(path), path.rpartition(".")[2]
        found = getattr(module, "Config", None)
        if found is not None and found.__module__ == module.__name__:
            yield pytest.param(short, found, id=short)


@pytest.mark.parametrize(("name", "config"), list(configs()))
def test_the_defaults_of_a_kernel_are_its_plain_variant(name, config):
    plain = config()
    assert plain == config() and hash(plain) == hash(config()) and issubclass(config, T.Config)
    for field in dataclasses.fields(config):
        value = getattr(plain, field.name)
        if isinstance(value, bool):
            assert value == ((name, field.name) in USUAL), field.name
        elif isinstance(value, int):
            # Extents are powers of two; 0 is "not so".
            assert value >= 0 and value & (value - 1) == 0, field.name
        elif field.name == "format":
            assert value == ("q4_0" if name in QUANTIZED else "")
        else:
            assert value in ("python", combine_splits.Config()), field.name


def test_of_all_kernels_one_lane_of_one_wave_is_the_default():
    plain = T.Config()
    assert (plain.arch, plain.waves, plain.threads_per_row, plain.num_stages, plain.resident) == ("python", 1, 0, 1, 0)
    assert not plain.split_kv and not plain.overlaps and (plain.vector_width, plain.wave_rows) == (8, 16)


@pytest.mark.parametrize("columns", [32, 64, 128, 256])
def test_rows_of_parts_begin_at_16_bytes_and_not_all_in_one_bank(columns):
    pitch = combine_splits.Config(columns=columns).pitch
    assert pitch > columns and 4 * pitch % 16 == 0 and pitch % 32 != 0
