"""What is read comes from the file, whatever the memory held that it is read into."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern.runtime.errors import ArgumentTypeError

save_file = pytest.importorskip("safetensors.numpy").save_file


def test_memory_that_held_something_else_is_written_all_over(tmp_path, monkeypatch):
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    save_file({"x": array, "none": array[:0]}, tmp_path / "model.safetensors")
    empty = np.empty

    def used(*given, **options):
        made = empty(*given, **options)
        made.reshape(-1).view(np.uint8)[:] = 0xA5
        return made

    with rocmkern.open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        monkeypatch.setattr(np, "empty", used)
        np.testing.assert_array_equal(checkpoint["x"].to_numpy(), array)
        assert checkpoint["none"].to_numpy().shape == (0, 100)


@pytest.mark.parametrize("path", [7, None, 1.5, ["model.safetensors"]])
def test_a_path_of_another_type_is_an_error_that_names_it(path):
    with pytest.raises(ArgumentTypeError, match=r"path: got .*a path"):
        rocmkern.open_checkpoint(path)
