"""How long attention over many cards takes, by the formula of `rocmkern.distributed.traffic`: no measurement."""

from __future__ import annotations

from collections.abc import Callable

from rocmkern.distributed.traffic import Cluster, Workload, heads_time, ring_time
from rocmkern.matrix.report.plots import chart

#: NVIDIA, H200 data sheet and DGX H200: 989 TFLOP/s, NVLink 900 GB/s both ways, 400 Gb/s a card. AMD, MI300X data sheet
#: and platform: 1307 TFLOP/s, a link of 128 GB/s both ways to each other card, 400 Gb/s a card.
CLUSTERS = (Cluster("H200", 989e12, 450e9, 50e9), Cluster("MI300X", 1307e12, 64e9, 50e9))
WORK = Workload(tokens=2**20, heads=64, kv_heads=8, head_dim=128)
SIZES = tuple(2**n for n in range(3, 11))


def series() -> dict[str, list[tuple[float, float]]]:
    """Seconds of a call over the number of cards, for each card and mode, and for arithmetic alone."""
    found: dict[str, list[tuple[float, float]]] = {}
    for cluster in CLUSTERS:
        found[f"{cluster.name}, ring"] = [(n, ring_time(WORK, cluster, n)) for n in SIZES]
        found[f"{cluster.name}, heads"] = [(n, heads_time(WORK, cluster, n)) for n in SIZES if n <= WORK.heads]
        found[f"{cluster.name}, arithmetic alone"] = [(n, WORK.arithmetic(cluster, n)) for n in SIZES]
    return found


def plot() -> str:
    """The plot, as HTML."""
    return f'<figure class="picture plot">{chart(series(), "cards", "s", joined=True)}</figure>\n'


INSERTS: dict[str, Callable[..., str]] = {"ranks": plot}
