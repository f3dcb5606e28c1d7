"""The decoder example: a random model, and one from a file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import rocmkern

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example():
    specification = importlib.util.spec_from_file_location("decoder_example", EXAMPLES / "decoder.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with rocmkern.using("cpu"):
        yield module


def run(example, capsys, *arguments):
    example.main([*map(str, arguments)])
    return [int(token) for token in capsys.readouterr().out.split(",")]


def test_a_random_model_generates(example, capsys):
    tokens = run(example, capsys, "--max-new-tokens", 5)
    assert len(tokens) == 5 and all(0 <= token < 50 for token in tokens)
    assert run(example, capsys, "--max-new-tokens", 5) == tokens
    drawn = run(example, capsys, "--temperature", 2, "--seed", 3, "--top-k", 40, "--top-p", 0.9)
    assert len(drawn) == 16


def test_a_file_generates_what_the_model_does(example, capsys, tmp_path):
    pytest.importorskip("safetensors")
    sys.path.insert(0, str(Path(__file__).parents[1] / "decoder"))
    try:
        from small_checkpoints import hugging_face_weights, save_hugging_face
    finally:
        sys.path.pop(0)
    path = save_hugging_face(tmp_path, hugging_face_weights())
    tokens = run(example, capsys, path, "--tokens", "4,5,6", "--max-new-tokens", 4, "--dtype", "float32")
    decoder = example.decoder_of(path, "float32", None)
    np.testing.assert_array_equal(decoder.generate([[4, 5, 6]], 4, temperature=0, seed=0)[0], tokens)


def test_words_need_a_tokenizer(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--prompt", "hello"])
    assert "tokenizer.json" in capsys.readouterr().err
