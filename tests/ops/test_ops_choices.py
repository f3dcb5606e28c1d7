"""Which variant is compiled for what, on each family of cards: the recorded choices are made.

The block sizes were found by measuring on cards, and a machine without one cannot tell a good one from a bad one. So
`recorded/choices.txt` keeps what is chosen; a line is an architecture, a question, and the answer for a range of sizes.
Whoever changes an answer measures it on a card, and writes the file anew with ``python tests/ops/test_ops_choices.py``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocmkern.ops import streaming
from rocmkern.ops.attention import tuning
from rocmkern.ops.linear import tuning as linear_tuning
from rocmkern.ops.mlp import tuning as mlp_tuning
from rocmkern.ops.norm import tuning as norm_tuning
from rocmkern.ops.norm.kernels import add_residual, layer_norm, rms_norm
from rocmkern.ops.quantized import tuning as quantized_tuning
from rocmkern.ops.rotary import tuning as rotary_tuning
from rocmkern.ops.rotary.kernels import rope_append_kv
from rocmkern.ops.rows.kernels import copy_rows
from rocmkern.ops.sampling import tuning as sampling_tuning
from rocmkern.ops.steps.kernels import causal_mask, softmax
from rocmkern.ops.steps.tuning import scores, values

RECORDED = Path(__file__).parent / "recorded" / "choices.txt"


class Card(NamedTuple):
    """What the choices ask of a target."""

    arch: str
    parallelism: int


CARDS = [
    Card("python", 1), Card("cpu-avx512", 8), Card("gfx942", 608), Card("gfx1030", 80), Card("gfx1100", 96),
    Card("sm_80", 216), Card("sm_90", 264),
]  # fmt: skip
ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 64, 65, 128, 129, 256, 512, 513, 1024)
COLUMNS = (64, 256, 257, 512, 513, 1024, 1025, 1536, 1537, 2048, 2049, 3072, 3073, 4096, 4097, 8192)


def described(value: Any) -> str:
    """Of a configuration what is not as it is by default; how a block joins parts is a question of its own."""
    if not dataclasses.is_dataclass(value):
        return str(value)
    chosen = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    words = [f"{field.name}={v}" for field, v in chosen if v != field.default and field.name not in ("arch", "join")]
    return " ".join(words) or "default"


def ranges(sizes: Sequence[int], answer: Callable[[int], Any]) -> str:
    """The answers, those of neighbours that are the same put together."""
    found: list[list[Any]] = []
    for size in sizes:
        text = described(answer(size))
        if found and found[-1][2] == text:
            found[-1][1] = size
        else:
            found.append([size, size, text])
    return "; ".join(
        f"{first}: {text}" if first == last else f"{first} to {last}: {text}" for first, last, text in found
    )


def resident_norms(arch: str, columns: int, itemsize: int) -> tuple[int, int]:
    """Blocks of both norms to hold at once."""
    of = norm_tuning
    return of.resident_rms(arch, columns, itemsize), of.resident_layer(arch, columns, itemsize)


def choices(card: Card) -> Iterator[str]:
    """Every question, with its answers."""
    arch = card.arch
    yield f"blocks that run at once for each of a stepping norm: {norm_tuning.stepping(arch)}"
    yield f"bucket: {ranges((1, 16, 17, 64, 65, 128, 129, 256), tuning.blocks_of(arch).bucket)}"
    for itemsize in (2, 4):
        for dim in (64, 128, 256):
            special = ({"score_mods": True}, {"paged": True}, {"sinks": True}) if itemsize == 2 and dim < 256 else ()
            for features in ({}, *special):
                what = " ".join([f"{itemsize} bytes", f"dim {dim}", *features])
                options = {"score_mods": False, **features}

                def attention(rows: int, dim: int = dim, size: int = itemsize, options: dict = options) -> Any:
                    return tuning.attention(arch, rows, dim, dim, size, **options)

                def split(rows: int, attention: Callable = attention) -> Any:
                    # Few rows in one part, as a long prompt; more in four.
                    return tuning.with_splits(card, attention(rows), 8, 4 if rows > 1 else 1)

                yield f"attention {what}: {ranges(ROWS, attention)}"
                if not features or "paged" in features:
                    yield f"split attention {what}: {ranges(ROWS, split)}"
            for step in (scores, values):
                found = ranges(ROWS, lambda n, f=step, d=dim, i=itemsize: f(arch, n, d, i))
                yield f"{step.__name__} {itemsize} bytes dim {dim}: {found}"
        for config in (rms_norm.Config, softmax.Config, layer_norm.Config, add_residual.Config):
            whole = config is not add_residual.Config
            found = ranges(
                COLUMNS, lambda n, c=config, i=itemsize, w=whole: streaming.rows_config(c, arch, n, i, whole=w)
            )
            yield f"{config.__module__.rpartition('.')[2]} {itemsize} bytes: {found}"
        yield f"resident norms {itemsize}: {ranges(COLUMNS, lambda n, i=itemsize: resident_norms(arch, n, i))}"
        for columns in (500, 4096, 32768):
            for turned in ((True, False), (False, True))[: 1 + (itemsize == 2 and columns == 4096)]:
                found = ranges(
                    ROWS, lambda n, c=columns, i=itemsize, t=turned: linear_tuning.product(card, (1, n, c), i, *t)
                )
                yield f"product {itemsize} bytes, {columns} columns, transposed {turned}: {found}"
            found = ranges(ROWS, lambda n, c=columns, i=itemsize: linear_tuning.few_rows_product(arch, n, c, i))
            yield f"few rows {itemsize} bytes, {columns} columns: {found}"
        yield f"gated {itemsize} bytes: {ranges(ROWS, lambda n, i=itemsize: mlp_tuning.gated_product(arch, n, i))}"
        quantized = ranges(ROWS, lambda n, i=itemsize: quantized_tuning.quantized_product(arch, n, i, "q4_0"))
        yield f"quantized {itemsize} bytes: {quantized}"
    sizes = linear_tuning.one_row(arch, 1, 4096, 4096)
    yield f"one row: {sizes is not None}, {linear_tuning.one_row(arch, 2, 4096, 4096) is not None}, longest: " + ranges(
        (1, 2, 511, 512, 513, 1 << 20), lambda n: linear_tuning.one_row(arch, 1, 8, 8 * n) is not None
    )
    if sizes is not None:
        yield f"row product: {described(linear_tuning.row_product_of(arch, sizes))}"
        yield f"gated row: {described(mlp_tuning.gated_row_of(arch, sizes))}"
        for name in ("q4_0", "q6_k", "mxfp4", "mxfp6"):
            for dtype, alignment in (("float16", 16), ("bfloat16", 2), ("float32", 16)):
                found = ranges(
                    (512, 1024, 4096, 8192, 14336),
                    lambda n, f=name, a=alignment, d=dtype: quantized_tuning.quantized_row(arch, n, f, a, d),
                )
                yield f"quantized row {name} {dtype} alignment {alignment}: {found}"
    for heads in (1, 8, 32):
        found = ranges((16, 17, 32, 33, 64, 65, 128), lambda n, h=heads: rotary_tuning.rotation(arch, h, n, False))
        yield f"rotation of {heads} heads: {found}"
    yield f"rotary: {described(rotary_tuning.rotary(rope_append_kv.Config, arch))}"
    yield f"line: {described(streaming.rows_config(causal_mask.Config, arch))}"
    yield f"turned: {described(streaming.turned(copy_rows.Config, arch))}"
    yield f"sampling: {described(sampling_tuning.sampling(arch, False))}"
    for waves in (1, 2, 4):
        yield f"combine, {waves} waves: {ranges((64, 128, 256), lambda n, w=waves: tuning.combine(arch, w, n))}"
    yield f"combine alone: {ranges((64, 128, 256), lambda n: tuning.combine_alone(arch, n))}"
    half = card.parallelism // 2
    counts = (1, half * 9 // 10, half * 9 // 10 + 1, half, half + 1, 2 * half * 9 // 10, 2 * half, 4 * half + 1)
    yield f"fills the device: {ranges(counts, lambda n: tuning.fill_device(card, n))}"
    steps = (1, 3, 4, 7, 8, 12, 16, 24, 32, 64, 128, 512, 2048)
    prices = {"": tuning.Splitting()}
    prices |= {f" of many rows, {size} bytes": cost for size, cost in tuning.sizes_of(arch).many_rows.items()}
    for name, cost in prices.items():
        for count in (1, 8, 64):
            found = ranges(steps, lambda n, p=cost, c=count: tuning.splits(card, p, c, n))
            yield f"parts of the keys of {count} blocks{name}: {found}"


def lines() -> list[str]:
    """The text of the recorded file."""
    return [f"{card.arch} {line}" for card in CARDS for line in choices(card)]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.arch)
def test_what_is_chosen_is_what_was_recorded(card):
    recorded = [line for line in RECORDED.read_text().splitlines() if line.startswith(f"{card.arch} ")]
    now = [f"{card.arch} {line}" for line in choices(card)]
    changes = "\n".join(difflib.unified_diff(recorded, now, "recorded", "chosen", n=0, lineterm=""))
    assert not changes, f"{__doc__}\n{changes}"


if __name__ == "__main__":
    RECORDED.write_text("\n".join(lines()) + "\n")
