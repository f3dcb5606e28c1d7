"""What attention over ranks sends and computes, and how long a call takes by that.

For n tokens of keys on each of W ranks, whose keys and values have b bytes a token (``Hkv * (D + Dv)`` elements for
each batch element)::

    ring, all keys seen        (W - 1) n b             sent by each rank
    ring, causal, contiguous   (W - 1 - r) n b         by rank r
    ring, causal, zigzag       (W - 1 + r) n b / 2     by rank r, which gets (2 W - 2 - r) n b / 2
    heads                      (W - 1) / W n (Hq (D + Dv) e + b')

where e is the size of an element and ``b' = b max(1, W / Hkv)``, and the log-sum-exps come on top, if they are asked
for. `ring_bytes` counts what the ring sends, piece by piece, for any lengths and windows.

A ring takes ``t_0 + sum_s max(t_s, m_s)`` on each rank: the arithmetic of a step, or the message of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.distributed.positions import Tokens, Visibility


def ring_bytes(queries: Tokens, keys: Tokens, seen: Visibility, token_bytes: int) -> list[int]:
    """Bytes of keys and values that each rank sends in a ring.

    Parameters
    ----------
    queries, keys : Tokens
    seen : Visibility
    token_bytes : int
        Of a key and a value of all heads and batch elements.
    """
    size = len(keys.lengths)
    of_queries = [queries.pieces(rank) for rank in range(size)]
    return [
        sum(
            (piece.stop - piece.start) * token_bytes
            for piece in keys.pieces(rank)
            for other in range(size)
            if other != rank and seen.needs(of_queries[other], piece)
        )
        for rank in range(size)
    ]


@dataclass(frozen=True)
class Cluster:
    """Published rates of a kind of card in servers of 8, and what is assumed of them.

    Attributes
    ----------
    name : str
    flop_rate : float
        Dense bfloat16 FLOP/s of a card.
    near, far : float
        Bytes a second in one direction: from a card to one other of its server, and to another server.
    per_server : int
    efficiency : float
        Share of `flop_rate` that attention reaches; assumed.
    latency : float
        Seconds of a message; assumed.
    """

    name: str
    flop_rate: float
    near: float
    far: float
    per_server: int = 8
    efficiency: float = 0.5
    latency: float = 10e-6


@dataclass(frozen=True)
class Workload:
    """A causal call: tokens of the whole sequence, heads, dimension of a head, bytes of an element."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int = 2

    def arithmetic(self, cluster: Cluster, size: int) -> float:
        """Seconds of a rank's share of ``4 D`` operations for each visible pair and head."""
        operations = 4 * self.head_dim * self.heads * self.tokens**2 / 2
        return operations / size / (cluster.flop_rate * cluster.efficiency)


def ring_time(work: Workload, cluster: Cluster, size: int) -> float:
    """Seconds of a causal ring with zigzag: of the rank that takes longest."""
    share = work.tokens / size
    block = share * 2 * work.kv_heads * work.head_dim * work.itemsize
    # Half a rank's pairs of runs are visible in a step with another rank, and in its own: all steps are equal.
    step = work.arithmetic(cluster, size) / size

    def message(rank: int, distance: int) -> float:
        source = (rank - distance) % size
        sent = block * (1.0 if source >= rank else 0.5)
        same = source // cluster.per_server == rank // cluster.per_server
        return cluster.latency + sent / (cluster.near if same else cluster.far)

    ranks = {0, size - 1, size // 2, min(cluster.per_server, size - 1)}
    return max(step + sum(max(step, message(rank, d)) for d in range(1, size)) for rank in ranks)


def heads_time(work: Workload, cluster: Cluster, size: int) -> float:
    """Seconds of a causal call by heads: exchanges, then arithmetic, then exchanges."""
    share = work.tokens / size
    row = share * work.head_dim * work.itemsize
    sent = row * (2 * work.heads + 2 * max(work.kv_heads, size)) / size  # to each other rank
    near = min(size, cluster.per_server) - 1
    time = near * sent / cluster.near + (size - 1 - near) * sent / cluster.far + 2 * size * cluster.latency
    return work.arithmetic(cluster, size) + time
