"""Masks: what ours say is what Transformers' own say, for every query that is a token, and as small as it can be."""

from __future__ import annotations

import itertools

import pytest
import small_models  # noqa: F401 - skips where Transformers is not installed
import torch
from transformers import masking_utils

from rocmkern.transformers.masks import Structure, mask

FUNCTIONS = {
    "causal": (masking_utils.causal_mask_function, None),
    "window": (masking_utils.sliding_window_causal_mask_function(4), 4),
    "chunks": (masking_utils.chunked_causal_mask_function(4, torch.zeros(3, dtype=torch.int64)), 4),
    "everything": (masking_utils.bidirectional_mask_function, None),
    "both sides": (masking_utils.sliding_window_bidirectional_mask_function(3), 3),
    "a caller's": (lambda b, h, q, k: (q + k) % 3 != 1, None),
}


def visible(found, queries, keys, *, causal):
    """``[B, Sq, Sk]`` of what `mask` returned: where the module's own causality is all, that of `causal`."""
    structure = Structure(causal, 0, keys) if found is None else Structure.decode(found)
    if structure is None:
        return found[:, 0].expand(-1, queries, -1)
    count = keys if structure.keys is None else structure.keys
    i = torch.arange(queries)[:, None] + count - queries
    j = torch.arange(keys)[None]
    seen = (j < count).expand(queries, -1)
    left, right = structure.sides or (keys, 0 if structure.causal else keys)
    seen = seen & (j >= i - left) & (j <= i + (0 if structure.causal else right))
    if structure.leftpad is not None:
        return seen & (j >= structure.leftpad[:, None])[:, None]
    if structure.lengths is not None:
        assert not structure.causal or queries == keys
        return seen & (j < structure.lengths[:, None])[:, None]
    padding = torch.ones((1, count), dtype=torch.bool) if structure.seen is None else structure.seen[:, 0, 0]
    return seen & torch.nn.functional.pad(padding, (0, keys - count))[:, None]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("padding", ["none", "left", "right", "holes"])
@pytest.mark.parametrize(
    ("queries", "keys", "q_offset", "kv_offset"),
    [(7, 7, 0, 0), (1, 7, 6, 0), (3, 9, 6, 0), (5, 12, 0, 0), (3, 12, 4, 0), (1, 12, 4, 0), (1, 4, 9, 6), (3, 6, 9, 6)],
    ids=["prompt", "step", "several", "static", "static, later", "static step", "window step", "window, several"],
)
@pytest.mark.parametrize("offset", [int, torch.tensor], ids=["int", "tensor"])
def test_a_mask_shows_what_transformers_shows(name, padding, queries, keys, q_offset, kv_offset, offset):
    function, local_size = FUNCTIONS[name]
    tokens = torch.ones((3, q_offset + queries), dtype=torch.bool)
    for row in range(3):
        if padding == "left":
            tokens[row, : row + 1] = False
        elif padding == "right":
            tokens[row, tokens.shape[1] - row :] = False
        elif padding == "holes":
            tokens[row, row + 1 : row + 3] = False
    arguments = {
        "batch_size": 3,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": offset(q_offset),
        "kv_offset": kv_offset,
        "mask_function": function,
        "attention_mask": None if padding == "none" else tokens,
        "local_size": local_size,
    }
    both = name in ("everything", "both sides")
    skips = {"allow_is_causal_skip": not both, "allow_is_bidirectional_skip": both}
    found = mask(**arguments, **skips)
    wanted = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)[:, 0]
    is_token = tokens[:, q_offset:]
    shown = visible(found, queries, keys, causal=not both).expand(wanted.shape)
    assert torch.equal(shown[is_token], wanted[is_token])
    if name in ("causal", "window", "everything"):
        # Bytes that it takes: never those of a matrix of queries and keys.
        assert found is None or found.untyped_storage().nbytes() <= 3 * (q_offset + keys)


def test_nothing_is_made_where_causality_is_all():
    tokens = torch.ones((2, 9), dtype=torch.bool)
    found = mask(2, 3, 9, q_offset=6, attention_mask=tokens)
    assert found is None
    static = mask(2, 5, 12, q_offset=0, attention_mask=tokens[:, :5])
    assert static.numel() == 0 and Structure.decode(static) == Structure(True, 0, keys=5)


@pytest.mark.parametrize("window", [None, 3])
def test_packed_sequences_are_cumulative_lengths(window):
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2]] * 2)
    numbers = masking_utils.find_packed_sequence_indices(positions)
    base = masking_utils.causal_mask_function
    if window is not None:
        base = masking_utils.sliding_window_causal_mask_function(window)
    if hasattr(masking_utils, "remap_positions_for_packed_sequence"):
        base = masking_utils.remap_positions_for_packed_sequence(base, positions)
    function = masking_utils.and_masks(base, masking_utils.packed_sequence_mask_function(numbers))
    found = Structure.decode(mask(1, 10, 10, mask_function=function, allow_is_causal_skip=False))
    assert found.cu_seqlens.tolist() == [0, 5, 7, 10]
    assert (found.longest, found.window) == (5, window or 0)
    # Rows of several batch elements are none of one another: a matrix says so.
    twice = mask(2, 10, 10, mask_function=function, allow_is_causal_skip=False)
    assert twice.dtype is torch.bool and twice.shape == (2, 1, 10, 10)


def test_a_mask_that_must_be_whole_is():
    for function in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        found = mask(2, 5, 5, mask_function=function, allow_is_causal_skip=False)
        assert found.dtype is torch.bool and found.shape == (2, 1, 5, 5)


STRUCTURES = [
    *[Structure(causal, window, 3) for causal, window in itertools.product([True, False], [0, 1, 5])],
    Structure(True, 5, 3, seen=torch.tensor([[False, True, True], [True, True, True]])[:, None, None]),
    Structure(False, 2, 3, seen=torch.tensor([[False, True, True], [True, True, True]])[:, None, None]),
    Structure(True, 0, leftpad=torch.tensor([1, 0, 7], dtype=torch.int32)),
    Structure(True, 4, leftpad=torch.tensor([2], dtype=torch.int32)),
    *[Structure(causal, 0, lengths=torch.tensor([3, 0], dtype=torch.int32)) for causal in (True, False)],
    Structure(True, 4, lengths=torch.tensor([3], dtype=torch.int32)),
    Structure(True, 4, cu_seqlens=torch.tensor([0, 2, 5], dtype=torch.int32), longest=3),
]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_survives_what_models_do_to_masks(structure):
    encoded = structure.encode("cpu")
    for moved in (encoded, encoded.to("cpu", copy=True), encoded[:, :, :, :7]):
        found = Structure.decode(moved)
        for name, wanted in vars(structure).items():
            value = getattr(found, name)
            assert torch.equal(value, wanted) if isinstance(wanted, torch.Tensor) else value == wanted, name


def test_padding_on_the_left_is_a_number_for_each_row():
    seen = torch.tensor([[False, False, True, True], [True, True, True, True], [False, False, False, False]])
    found = Structure.decode(mask(3, 4, 4, attention_mask=seen))
    assert found.leftpad.dtype is torch.int32 and found.leftpad.tolist() == [2, 0, 4]


def test_padding_on_the_right_is_a_number_for_each_row():
    seen = torch.tensor([[True, True, False, False], [True, True, True, True], [False, False, False, False]])
    for base in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        causal = base is masking_utils.causal_mask_function
        skips = {"allow_is_causal_skip": causal, "allow_is_bidirectional_skip": not causal}
        found = Structure.decode(mask(3, 4, 4, mask_function=base, attention_mask=seen, **skips))
        assert found.causal is causal and found.lengths.tolist() == [2, 4, 0]
