"""Keys and values of many sequences in blocks of one size: page table, reference counts, copy on write.

The blocks and the length of each sequence are the truth, set one instruction after the other, behind which no exception
can come (see `rocmkern.runtime.memory`). The numbers of holders and the list of free blocks follow from them: a call
that was interrupted while it changed those leaves a mark, and the next one makes them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, ClosedError, OutOfBlocksError
from rocmkern.runtime.handle import check_dtype
from rocmkern.runtime.manager import DeviceTensor, ResourceManager

#: Element types of caches that attention reads.
DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
#: What the blocks are: arrays in host memory, or those of a manager.
Blocks = TypeVar("Blocks", bound=np.ndarray | DeviceTensor)


class KVCache(Generic[Blocks]):
    """A pool of blocks for the keys and values of sequences, as `rocmkern.paged_attention` reads them.

    A sequence holds just enough blocks for its tokens. `fork` shares the blocks of a sequence; a shared block that is
    written to (by `append`) is copied first. A block goes back to the pool when no sequence holds it any more. Calls
    must not come from several threads at the same time.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, of 2 ** 31 tokens in all at most: slots are int32.
    block_size : int
        Tokens of a block, 1 or more.
    num_kv_heads, head_dim : int
        Key-value heads, and elements of a key.
    value_dim : int, optional
        Elements of a value; `head_dim` by default.
    num_layers : int
        Layers of a model that share the page table.
    dtype : dtype
        Element type of keys and values; float16, bfloat16, int8, float8 (``ml_dtypes``) ...
    manager : ResourceManager, optional
        Whose device the blocks lie on; NumPy arrays in host memory by default.

    Attributes
    ----------
    keys, values : array, ``[num_layers, num_blocks, block_size, num_kv_heads, head_dim]``
        The blocks, zeros at first; ``keys[layer]`` is the `key_cache` of a layer.

    Examples
    --------
    >>> import rocmkern
    >>> cache = rocmkern.KVCache(8, 16, num_kv_heads=2, head_dim=64)
    >>> prompt = cache.add()
    >>> slots = cache.append(prompt, 20)
    >>> cache.block_table([prompt]), cache.context_lens([prompt])
    (array([[0, 1]], dtype=int32), array([20], dtype=int32))
    >>> other = cache.fork(prompt)
    >>> _ = cache.append(other, 1)  # copies the second block
    >>> cache.block_table([prompt, other])
    array([[0, 1],
           [0, 2]], dtype=int32)
    """

    num_blocks: int
    block_size: int

    @overload
    def __init__(
        self: KVCache[np.ndarray],
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = ...,
        num_layers: int = ...,
        dtype: DTypeLike = ...,
        manager: None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: KVCache[DeviceTensor],
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = ...,
        num_layers: int = ...,
        dtype: DTypeLike = ...,
        manager: ResourceManager,
    ) -> None: ...
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        num_layers: int = 1,
        dtype: DTypeLike = np.float32,
        manager: ResourceManager | None = None,
    ):
        self.num_blocks, self.block_size = _count("num_blocks", num_blocks, 0), _count("block_size", block_size, 1)
        layers, heads = _count("num_layers", num_layers, 1), _count("num_kv_heads", num_kv_heads, 1)
        columns = _count("head_dim", head_dim, 1)
        wide = columns if value_dim is None else _count("value_dim", value_dim, 1)
        if self.num_blocks * self.block_size > 2**31:
            allowed = f"at most {2**31 // self.block_size} blocks of {self.block_size} tokens: slots are int32"
            raise ArgumentError("num_blocks", str(self.num_blocks), allowed)
        dtype = check_dtype(dtype, "dtype")
        if dtype.name not in DTYPES:
            raise ArgumentTypeError("dtype", dtype.name, "one of " + ", ".join(DTYPES))
        shape = (layers, self.num_blocks, self.block_size, heads)
        elements = layers * self.num_blocks * self.block_size * heads * max(columns, wide)
        if elements * dtype.itemsize >= 2**63:
            raise ArgumentError("head_dim", f"{elements} elements in all", "less than 2 ** 63 bytes: smaller arguments")
        if manager is not None and not isinstance(manager, ResourceManager):
            raise ArgumentTypeError("manager", type(manager).__name__, "None, for host memory, or a ResourceManager")
        make: Any = np.zeros if manager is None else manager.zeros
        self._keys: Any = make((*shape, columns), dtype)
        try:
            self._values: Any = make((*shape, wide), dtype)
        except BaseException:
            if manager is not None:
                self._keys.close()
            raise
        # The next block to hand out is the last of the list.
        self._free = list(range(self.num_blocks))[::-1]
        self._holders = [0] * self.num_blocks
        self._blocks: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next = 0
        self._torn = self._closed = False

    # ------------------------------------------------------------------------------------------------- what there is

    @property
    def keys(self) -> Blocks:
        """The blocks of the keys."""
        self._check_open()
        keys: Blocks = self._keys
        return keys

    @property
    def values(self) -> Blocks:
        """The blocks of the values."""
        self._check_open()
        values: Blocks = self._values
        return values

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        self._mend()
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Numbers of the sequences, in the order in which they came."""
        return tuple(self._blocks)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        self._known("sequence", sequence)
        return self._lengths[sequence]

    def blocks(self, sequence: int) -> tuple[int, ...]:
        """Blocks of a sequence, in order."""
        self._known("sequence", sequence)
        return tuple(self._blocks[sequence])

    def reference_count(self, block: int) -> int:
        """Number of sequences that hold a block."""
        if _count("block", block, 0) >= self.num_blocks:
            raise ArgumentError("block", str(block), f"a block from 0 to {self.num_blocks - 1}")
        self._mend()
        return self._holders[block]

    def block_table(self, sequences: Sequence[int] | None = None) -> np.ndarray:
        """Page table of some sequences (all by default): int32 ``[n, most blocks of one]``, filled up with -1."""
        chosen = [self._blocks[s] for s in self._chosen(sequences)]
        table = np.full((len(chosen), max(map(len, chosen), default=0)), -1, np.int32)
        for row, blocks in zip(table, chosen, strict=True):
            row[: len(blocks)] = blocks
        return table

    def context_lens(self, sequences: Sequence[int] | None = None) -> np.ndarray:
        """Lengths of some sequences (all by default): int32 ``[n]``."""
        return np.array([self._lengths[s] for s in self._chosen(sequences)], np.int32)

    def slots(self, sequence: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Slots (``block * block_size + row``) of the tokens ``start`` to ``stop`` of a sequence: int32."""
        length, start = self.length(sequence), _count("start", start, 0)
        stop = length if stop is None else _count("stop", stop, 0)
        if not 0 <= start <= stop <= length:
            raise ArgumentError("stop", f"tokens {start} to {stop}", f"tokens within 0 to {length}")
        token = np.arange(start, stop)
        blocks = np.array(self._blocks[sequence], np.int64)
        return (blocks[token // self.block_size] * self.block_size + token % self.block_size).astype(np.int32)

    # -------------------------------------------------------------------------------------------------- what changes

    def add(self) -> int:
        """A new, empty sequence; returns its number."""
        self._check_open()
        sequence = self._next
        self._next += 1
        self._blocks[sequence], self._lengths[sequence] = [], 0
        return sequence

    def append(self, sequence: int, tokens: int = 1) -> np.ndarray:
        """Make room for more tokens of a sequence.

        Parameters
        ----------
        sequence : int
        tokens : int
            How many, at least 0.

        Returns
        -------
        numpy.ndarray
            int32 ``[tokens]``, the slot of each of them: what `rocmkern.rope_append_kv` takes.

        Raises
        ------
        OutOfBlocksError
            The pool has not enough blocks. Nothing has changed then.
        """
        self._known("sequence", sequence)
        self._mend()
        tokens = _count("tokens", tokens, 0)
        blocks, length = self._blocks[sequence], self._lengths[sequence]
        missing = -(-(length + tokens) // self.block_size) - len(blocks)
        # Only the last block can be written to, and only where it has room.
        shared = tokens > 0 and length % self.block_size > 0 and self._holders[blocks[-1]] > 1
        needed = missing + shared
        if needed > len(self._free):
            raise OutOfBlocksError(needed, len(self._free), self.num_blocks)
        self._torn = True
        grown = list(blocks)
        if shared:
            grown[-1] = self._copied(blocks[-1])
            self._release(blocks[-1])
        grown += [self._take() for _ in range(missing)]
        self._blocks[sequence], self._lengths[sequence], self._torn = grown, length + tokens, False
        return self.slots(sequence, length)

    def fork(self, sequence: int) -> int:
        """A new sequence with the tokens of another one, in the same blocks; returns its number."""
        self._known("sequence", sequence)
        self._mend()
        self._torn = True
        blocks, twin = list(self._blocks[sequence]), self._next
        self._next += 1
        for block in blocks:
            self._holders[block] += 1
        self._blocks[twin], self._lengths[twin], self._torn = blocks, self._lengths[sequence], False
        return twin

    def free(self, sequence: int) -> None:
        """Forget a sequence; blocks that no other one holds go back to the pool."""
        self._known("sequence", sequence)
        self._mend()
        self._torn = True
        blocks = self._blocks[sequence]
        del self._blocks[sequence], self._lengths[sequence]
        for block in reversed(blocks):
            self._release(block)
        self._torn = False

    def close(self) -> None:
        """Forget all sequences and let go of the blocks' memory; a second call does nothing."""
        for sequence in self.sequences:
            self.free(sequence)
        self._closed = True
        for array in (self._keys, self._values):
            if array is not None and not isinstance(array, np.ndarray):
                array.close()
        self._keys = self._values = None

    def __enter__(self) -> KVCache[Blocks]:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- helpers

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the KVCache was closed: make a new one")

    def _take(self) -> int:
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free.append(block)

    def _copied(self, old: int) -> int:
        """A block with a copy of what a shared one holds."""
        new = self._take()
        for array in (self.keys, self.values):
            for layer in range(array.shape[0]):
                if isinstance(array, np.ndarray):
                    array[layer, new] = array[layer, old]
                else:
                    array[layer, new].copy_(array[layer, old])
        return new

    def _mend(self) -> None:
        """Make anew what follows from the blocks of the sequences, if a call was interrupted."""
        if not self._torn:
            return
        holders = [0] * self.num_blocks
        for blocks in self._blocks.values():
            for block in blocks:
                holders[block] += 1
        # In the order in which they were free, behind those that a call had taken.
        listed = dict.fromkeys(self._free)
        lost = [block for block in range(self.num_blocks)[::-1] if block not in listed]
        free = [block for block in (*lost, *listed) if not holders[block]]
        self._holders, self._free, self._torn = holders, free, False

    def _known(self, argument: str, sequence: Any) -> None:
        self._check_open()
        if _count(argument, sequence, 0) not in self._blocks:
            allowed = f"one of {list(self._blocks)}" if self._blocks else "a number that add() or fork() returned"
            raise ArgumentError(argument, repr(sequence), allowed)

    def _chosen(self, sequences: Sequence[int] | None) -> Sequence[int]:
        self._check_open()
        if sequences is None:
            return self.sequences
        try:
            chosen = list(sequences)
        except TypeError:
            raise ArgumentTypeError("sequences", repr(sequences), "numbers of sequences, or None for all") from None
        for sequence in chosen:
            self._known("sequences", sequence)
        return chosen


def _count(argument: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(argument, repr(value), f"an integer of at least {least}")
    if value < least:
        raise ArgumentError(argument, str(value), f"an integer of at least {least}")
    return int(value)
