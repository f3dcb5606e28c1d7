"""Block sizes of attention for each architecture, as data, and the few rules that pick among them.

The number of compiled variants stays small because only these things are compiled in: the rows of a block (at most 4
sizes), the bucket of the head dimension, whether scores are modified, and the element type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.ops.attention.kernels import combine_splits, flash_attention
from rocmkern.targets import Target
from rocmkern.tile.language.kernel import VECTOR_WIDTH, rows_at_once


@dataclass(frozen=True)
class AttentionBlocks:
    """Blocks for products of queries and keys, or of weights and values.

    Attributes
    ----------
    rows : mapping of int to int
        Tile rows to choose from, smallest first, with the waves of such a block: the first that holds the problem's
        rows is taken, else the last.
    keys : mapping of int to int
        Keys per step for each bucket of the head dimension, smallest first, for 2-byte elements.
    few_rows_keys : int
        Keys per step where a block has fewer than 16 rows; 0: as ``keys`` says.
    float32_share : int
        Divisor of ``keys`` for float32; a step has at least 16 keys.
    one_wave_share : int
        Divisor of ``keys`` where a block is one wave, whose lanes hold the whole next step on its way.
    one_wave_bucket : int
        Largest bucket for which blocks of one wave are used.
    narrow : mapping of int to int
        Where products are FMAs and a lane cannot hold 16 rows: the smallest bucket at which a block of so many rows has
        8 rows a wave, and twice the waves of ``rows``.
    narrow_itemsize : int
        Elements of so many bytes, and longer ones, are multiplied by FMAs.
    alike : tuple of int
        Tile rows of blocks in which a row is computed alike, to the bit: what batch-invariant calls choose from.
    """

    rows: Mapping[int, int]
    keys: Mapping[int, int]
    few_rows_keys: int = 0
    float32_share: int = 1
    one_wave_share: int = 1
    one_wave_bucket: int = 256
    narrow: Mapping[int, int] = field(default_factory=dict)
    narrow_itemsize: int = 4
    alike: tuple[int, ...] = (64,)

    def bucket(self, head_dim: int) -> int:
        """Smallest bucket that holds a head dimension."""
        return next(size for size in self.keys if size >= head_dim)

    def block(
        self, needed: int, bucket: int, itemsize: int, at_least: int = 0, invariant: bool = False
    ) -> dict[str, Any]:
        """Rows of a block for a problem of so many rows, its waves, and the rows of a wave."""
        wide = bucket > self.one_wave_bucket
        sizes = [size for size, waves in self.rows.items() if size >= at_least and not (wide and waves == 1)]
        if invariant:
            sizes = list(self.alike)
        size = next((size for size in sizes if size >= needed), sizes[-1])
        if itemsize >= self.narrow_itemsize and bucket >= self.narrow.get(size, bucket + 1):
            return {"block_m": size, "waves": 2 * self.rows[size], "wave_rows": 8}
        return {"block_m": size, "waves": self.rows[size], "wave_rows": 16}

    def block_keys(self, rows: int, bucket: int, itemsize: int) -> int:
        """Keys per step."""
        if rows < 16 and self.few_rows_keys:
            return self.few_rows_keys
        share = self.float32_share if itemsize == 4 else 1
        if self.rows.get(rows) == 1:
            share *= self.one_wave_share
        return max(16, self.keys[bucket] // share)


@dataclass(frozen=True)
class TallBlock:
    """A block of ``rows`` and ``waves``, where there are at least four times as many rows, for some head dimensions."""

    rows: int
    waves: int
    up_to_head_dim: int


@dataclass(frozen=True)
class DecodeBlock:
    """A block of 16 rows all of whose waves have all of the rows: keys per step, waves, and steps on their way."""

    keys: int
    waves: int
    num_stages: int


@dataclass(frozen=True)
class ResidentBlock:
    """How many ``blocks`` with so many ``keys`` per step a multiprocessor should hold at once."""

    blocks: int
    keys: int


@dataclass(frozen=True)
class Joining:
    """Blocks that join the parts of a split attention.

    Attributes
    ----------
    rows : int
        Rows of a block; 0: as many as its lanes hold.
    splits : int
        Parts per step, of lanes with `VECTOR_WIDTH` columns: twice as many if joining is all that a block does.
    wide_columns : int
        Columns of a lane side by side in a block of at least four waves: with half as many, twice as many parts per
        step.
    waves : int
        Waves of a block that only joins.
    up_to_rows : int
        Tile rows up to which a block of a split attention joins the parts itself: more of them are shared out by a
        launch of their own. So they are where there are score modifications (AMD GPUs ran out of scalar registers).
    """

    rows: int = 0
    splits: int = 8
    wide_columns: int = VECTOR_WIDTH
    waves: int = 2
    up_to_rows: int = 16


@dataclass(frozen=True)
class Splitting:
    """What it costs to split keys into parts, in steps of a block.

    Attributes
    ----------
    joining, part : float
        What joining takes, and so much more for each part.
    fewest : int
        Steps that a part should have at least.
    """

    joining: float = 3.0
    part: float = 0.06
    fewest: int = 4


@dataclass(frozen=True)
class Sizes:
    """Block sizes of attention on one architecture; those of 2-byte elements by bucket of the head dimension.

    Attributes
    ----------
    blocks : AttentionBlocks
    tall : TallBlock, optional
        For 2-byte elements without score modifications.
    decode : mapping of int to DecodeBlock
        For 2-byte elements and few rows, without sinks.
    paged_alone : mapping of int to DecodeBlock
        The same where keys and values lie in pages, and each block has a multiprocessor to itself.
    resident : mapping of int to ResidentBlock
        For 2-byte elements without score modifications in blocks of several waves. Where there is no entry the compiler
        and ``blocks.keys`` choose.
    joining : Joining
    many_rows : mapping of int to Splitting
        By the bytes of an element, for blocks of more rows than join themselves, if it is not `Splitting`'s default.
    enough : float
        Blocks of split attention that keep the device's memory busy, relative to the target's ``parallelism``.
    """

    blocks: AttentionBlocks
    tall: TallBlock | None = None
    decode: Mapping[int, DecodeBlock] = field(default_factory=dict)
    paged_alone: Mapping[int, DecodeBlock] = field(default_factory=dict)
    resident: Mapping[int, ResidentBlock] = field(default_factory=dict)
    joining: Joining = field(default_factory=Joining)
    many_rows: Mapping[int, Splitting] = field(default_factory=dict)
    enough: float = 1.0


# A wave has 16 rows; shared memory and registers bound the keys.
_CDNA = AttentionBlocks(rows={16: 1, 64: 4}, keys={64: 64, 128: 32, 256: 16}, float32_share=2)
_RDNA = replace(_CDNA, one_wave_share=2, one_wave_bucket=128, narrow={16: 128, 64: 256})
# A warp of a tall block has 32 rows, which halves what it reads of shared memory for each product.
_NVIDIA = Sizes(
    AttentionBlocks(rows={16: 1, 64: 4}, keys={64: 64, 128: 64, 256: 32}, float32_share=2),
    tall=TallBlock(rows=128, waves=4, up_to_head_dim=128),
    joining=Joining(wide_columns=4),
)
_TABLE = {
    # Small on purpose: tests of a few dozen rows cross block borders.
    "python": Sizes(
        AttentionBlocks(rows={8: 1, 16: 1}, keys={64: 16, 256: 16}, alike=(16,)),
        joining=Joining(rows=2, splits=4, waves=1, up_to_rows=8),
    ),
    "cpu": Sizes(
        # From 16 rows on lanes run over rows, and every lane computes alike.
        AttentionBlocks(
            rows={1: 1, 4: 1, 16: 1, 64: 1}, keys={64: 64, 128: 64, 256: 64}, few_rows_keys=32, alike=(16, 64)
        ),
        joining=Joining(rows=4, waves=1),
    ),
    "cdna": Sizes(_CDNA),
    "rdna": Sizes(_RDNA),
    "rdna2": Sizes(replace(_RDNA, narrow_itemsize=2)),
    "nvidia": _NVIDIA,
    # Blocks of one group of four warps, so that one multiplies while another one's softmax runs. An H200, TFLOP/s, full
    # and causal: (4, 32, 2048, 128) 459 and 391, with two blocks at once 414 and 343, with 128 rows and 8 warps 340 and
    # 298; (8, 16, 2048, 64) 386 and 301, with 64 keys and four blocks 359 and 295.
    # Decoding: a block of four warps to a multiprocessor, with two windows of 64 keys ahead, keeps the memory busy, and
    # there is room for a second one. An H200, 8 heads of keys of 128, L2 flushed by reads: batch 1, 8192 keys, in 16
    # parts 19 us, in 33 parts 21; 32768 keys 42 and 44; batch 16, 8192 keys, in 1 part 133, in 2 parts 149. Blocks of 4
    # warps with 128 keys, or of 8, take as long; blocks of 2 warps 1 to 4 us longer at batch 1.
    # Pages cost a little less in longer steps, for which there is room as long as no second block is on a
    # multiprocessor. One sequence of 8192 keys in pages of 16, in calls that take turns with 16 caches: 15.2 and 15.4
    # us, without pages 14.
    # Keys of prompts, 8 heads, an H200: 512 float16 of 128 columns take 12.3 us, in 2 parts 15.6; 1024 for 2 heads
    # 20.4, in 4 parts 13.9. A step of float32 is four times as long: 256 keys of 64 columns take 44 us, in 2 parts 27,
    # in 4 parts 18.
    "hopper": replace(
        _NVIDIA,
        tall=None,
        decode={64: DecodeBlock(128, waves=4, num_stages=2), 128: DecodeBlock(64, waves=4, num_stages=2)},
        paged_alone={64: DecodeBlock(256, waves=8, num_stages=1), 128: DecodeBlock(128, waves=4, num_stages=1)},
        resident={64: ResidentBlock(3, keys=128), 128: ResidentBlock(3, keys=64)},
        many_rows={2: Splitting(5.0, 0.5), 4: Splitting(1.5, 0.05, fewest=2)},
        enough=0.5,
    ),
}
#: A tall block needs so many times its rows.
_TALL_BLOCKS = 4
#: In steps, what each block reads and writes besides keys and values, and what it does before its first step.
_PART_OF_STEP, _START = 1 / 8, 1.0
#: Share of the multiprocessors that are busy to the end where keys are not split.
_BUSY = 0.9


def sizes_of(arch: str) -> Sizes:
    """The block sizes of an architecture."""
    return tuned(_TABLE, arch)


def blocks_of(arch: str) -> AttentionBlocks:
    """Those for products."""
    return sizes_of(arch).blocks


def attention(
    arch: str,
    rows: int,
    head_dim: int,
    value_dim: int,
    itemsize: int,
    score_mods: bool,
    paged: bool = False,
    sinks: bool = False,
    invariant: bool = False,
) -> flash_attention.Config:
    """Variant for ``rows`` tile rows (queries times packed heads) of these dimensions.

    ``invariant``: a row is the same bits in all variants that may be chosen for it, however many rows there are.
    """
    sizes = sizes_of(arch)
    blocks, tall = sizes.blocks, sizes.tall
    dim = blocks.bucket(max(head_dim, value_dim))
    block = blocks.block(rows, dim, itemsize, invariant=invariant)
    plain_halves = itemsize == 2 and not score_mods
    if tall and not invariant and plain_halves and _TALL_BLOCKS * tall.rows <= rows and dim <= tall.up_to_head_dim:
        block |= {"block_m": tall.rows, "waves": tall.waves}
    keys = blocks.block_keys(block["block_m"], dim, itemsize)
    if block["waves"] > 1 and plain_halves and dim in sizes.resident:
        block["resident"], keys = sizes.resident[dim].blocks, sizes.resident[dim].keys
    if block["block_m"] == 16 and itemsize == 2 and not sinks and not invariant and dim in sizes.decode:
        decode = sizes.decode[dim]
        keys = decode.keys
        block |= {"waves": decode.waves, "num_stages": decode.num_stages, "split_kv": True}
    return flash_attention.Config(
        arch=arch,
        **block,
        block_n=keys,
        head_dim=dim,
        value_dim=dim,
        score_mods=score_mods,
        paged=paged,
        join=combine(arch, block["waves"], dim),
    )


def with_splits(target: Target, cfg: flash_attention.Config, row_blocks: int, splits: int) -> flash_attention.Config:
    """Variant for a launch of so many blocks of rows, each with so many parts of the keys."""
    sizes = sizes_of(cfg.arch)
    alone = sizes.paged_alone.get(cfg.head_dim)
    if alone and cfg.paged and cfg.split_kv and row_blocks * splits <= target.parallelism // 2:
        cfg = replace(cfg, block_n=alone.keys, waves=alone.waves, num_stages=alone.num_stages)
    if splits == 1 or cfg.score_mods or cfg.block_m > sizes.joining.up_to_rows:
        return cfg
    return replace(cfg, joins=True, join=replace(combine(cfg.arch, cfg.waves, cfg.value_dim), sums=True))


def fill_device(target: Target, count: int) -> bool:
    """Whether so many blocks, one on a multiprocessor at a time, keep nearly all of them busy to the end."""
    multiprocessors = max(1, target.parallelism // 2)
    return count >= _BUSY * multiprocessors * -(-count // multiprocessors) > 0


def splitting(cfg: flash_attention.Config, itemsize: int) -> Splitting:
    """What splitting costs blocks of a variant."""
    sizes = sizes_of(cfg.arch)
    many = cfg.block_m > sizes.joining.up_to_rows
    return sizes.many_rows.get(itemsize, Splitting()) if many else Splitting()


def splits(target: Target, cost: Splitting, count: int, steps: int) -> int:
    """Number of parts of the keys of an attention of ``count`` blocks with ``steps`` steps each.

    A model of the time, in steps of as many blocks as keep the memory busy: beyond that number they take turns.
    """
    enough = max(1, int(target.parallelism * sizes_of(target.arch).enough))

    def time(parts: int) -> float:
        joining = 0.0 if parts == 1 else cost.joining + parts * (cost.part + _PART_OF_STEP * count / enough)
        return -(-count * parts // enough) * (-(-steps // parts) + _START) + joining

    most = min(steps // cost.fewest, -(-2 * enough // max(count, 1)))
    return min(range(1, max(most, 1) + 1), key=time)


def combine(arch: str, waves: int, value_dim: int) -> combine_splits.Config:
    """Variant of ``combine_splits`` for a block of so many waves: as many rows as their lanes hold side by side."""
    joining = sizes_of(arch).joining
    dim = blocks_of(arch).bucket(value_dim)
    own = joining.wide_columns if waves >= 4 else VECTOR_WIDTH
    lanes = 0 if joining.rows else min(dim // own, architecture(arch).wave)
    cfg = combine_splits.Config(
        arch=arch,
        waves=waves,
        threads_per_row=lanes,
        vector_width=own,
        columns=dim,
        splits=joining.splits * VECTOR_WIDTH // own,
    )
    return replace(cfg, block_m=joining.rows or rows_at_once(cfg))


def combine_alone(arch: str, value_dim: int) -> combine_splits.Config:
    """Variant of ``combine_splits`` that is launched on its own."""
    cfg = combine(arch, sizes_of(arch).joining.waves, value_dim)
    return replace(cfg, splits=2 * cfg.splits, overlaps=True)
