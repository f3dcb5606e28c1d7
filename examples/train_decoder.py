"""A small decoder learns the text of this repository with the gradients of rocmkern; beside it the same in PyTorch.

    python examples/train_decoder.py                       # 200 steps of each, and loss.svg
    python examples/train_decoder.py --device cuda --dtype bfloat16    # on a card, AMD's too

Two layers of what a Llama has (RMSNorm, rotated heads, SwiGLU) predict the next byte of README and documentation. Both
runs start from the same weights and see the same bytes. Sums are added up in another order by another program, by other
numbers of threads as well, and training makes small differences larger. ``--spread`` says how far apart losses are that
mean the same: it runs PyTorch with one thread instead of two, and from weights that differ in their last place.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

import rocmkern
from rocmkern.matrix.report.plots import chart

ROOT = Path(__file__).parents[1]
LAYERS, HEADS, HEAD_DIM, HIDDEN, BYTES = 2, 4, 64, 512, 256
WIDTH, EPS = HEADS * HEAD_DIM, 1e-5
Weights = dict[str, torch.Tensor]


class Functions(NamedTuple):
    """What the model is made of; heads are ``[batch, heads, tokens, dim]``."""

    embedding: Callable[..., torch.Tensor]
    rms_norm: Callable[..., torch.Tensor]
    linear: Callable[..., torch.Tensor]
    rope: Callable[..., torch.Tensor]
    attention: Callable[..., torch.Tensor]
    swiglu: Callable[..., torch.Tensor]
    cross_entropy: Callable[..., torch.Tensor]


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, the halves of a head being pairs."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


OF_TORCH = Functions(
    embedding=lambda ids, weight: F.embedding(ids, weight),
    rms_norm=lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
    linear=F.linear,
    rope=_rotated,
    attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    swiglu=lambda gate, up: F.silu(gate) * up,
    cross_entropy=lambda x, weight, target: F.cross_entropy(F.linear(x, weight), target),
)
OURS = Functions(
    embedding=lambda ids, weight: rocmkern.embedding(weight, ids),
    rms_norm=lambda x, weight: rocmkern.rms_norm(x, weight, eps=EPS),
    linear=rocmkern.linear,
    rope=lambda x: rocmkern.rope(x, torch.arange(x.shape[-2], device=x.device), layout="hsd"),
    attention=lambda q, k, v: rocmkern.flash_attention(q, k, v, causal=True),
    swiglu=rocmkern.swiglu,
    cross_entropy=lambda x, weight, target: rocmkern.linear_cross_entropy(x, weight, target)[0],
)


def weights(device: str, dtype: torch.dtype, seed: int = 0, beside: bool = False) -> Weights:
    """Weights to begin with: normal deviates, norms 1; or the numbers next to these."""
    rng = np.random.default_rng(seed)
    shapes = {"embedding": (BYTES, WIDTH), "head": (BYTES, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {f"{layer}.{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
        shapes |= {f"{layer}.gate": (HIDDEN, WIDTH), f"{layer}.up": (HIDDEN, WIDTH), f"{layer}.down": (WIDTH, HIDDEN)}
    drawn = {name: rng.standard_normal(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
    norms = [f"{layer}.{name}" for layer in range(LAYERS) for name in ("norm", "mlp_norm")]
    drawn |= {name: np.ones(WIDTH) for name in (*norms, "norm")}
    tensors = {name: torch.tensor(x, device=device, dtype=dtype) for name, x in drawn.items()}
    if beside:
        tensors = {name: torch.nextafter(x, torch.full_like(x, torch.inf)) for name, x in tensors.items()}
    return {name: x.requires_grad_() for name, x in tensors.items()}


def loss_of(f: Functions, w: Weights, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next byte of ``ids`` [batch, tokens + 1], in nats."""
    given, target = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)
    batch, tokens = given.shape
    x = f.embedding(given, w["embedding"])
    for layer in range(LAYERS):
        of = {name.partition(".")[2]: weight for name, weight in w.items() if name.startswith(f"{layer}.")}
        h = f.rms_norm(x, of["norm"])
        q, k, v = (f.linear(h, of[name]).view(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2) for name in "qkv")
        heads = f.attention(f.rope(q), f.rope(k), v)
        x = x + f.linear(heads.transpose(1, 2).reshape(batch, tokens, WIDTH), of["o"])
        h = f.rms_norm(x, of["mlp_norm"])
        x = x + f.linear(f.swiglu(f.linear(h, of["gate"]), f.linear(h, of["up"])), of["down"])
    return f.cross_entropy(f.rms_norm(x, w["norm"]).reshape(-1, WIDTH), w["head"], target)


def text() -> np.ndarray:
    """The bytes of README and the documentation."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return np.frombuffer(b"\n".join(page.read_bytes() for page in pages), np.uint8).astype(np.int64)


def steps_of(
    loss_of_ids: Callable[[torch.Tensor], torch.Tensor], trained: list[torch.Tensor], data: np.ndarray, steps: int,
    tokens: int = 64, batch: int = 8, title: str = "",
) -> list[float]:  # fmt: skip
    """Losses of so many steps of AdamW over bytes that are drawn from data, always the same ones."""
    rng, optimizer, losses = np.random.default_rng(1), torch.optim.AdamW(trained, lr=2e-3), []
    for step in range(steps):
        starts = rng.integers(0, len(data) - tokens - 1, batch)
        ids = torch.tensor(np.stack([data[start : start + tokens + 1] for start in starts]))
        optimizer.zero_grad()
        loss = loss_of_ids(ids.to(trained[0].device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if title:
            print(f"\r{title}: step {step + 1} of {steps}, loss {losses[-1]:.4f}", end="", flush=True)
    if title:
        print()
    return losses


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Root of the mean square of the differences between two losses."""
    return float(np.sqrt(np.mean(np.square(np.subtract(a, b)))))


def main() -> None:
    """Train both, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--spread", action="store_true", help="also PyTorch with one thread, and nudged")
    parser.add_argument("--plot", type=Path, default=Path("loss.svg"))
    options = parser.parse_args()

    def run(f: Functions, title: str, beside: bool = False) -> list[float]:
        w = weights(options.device, getattr(torch, options.dtype), beside=beside)
        trained, sizes = list(w.values()), (options.tokens, options.batch)
        return steps_of(lambda ids: loss_of(f, w, ids), trained, text(), options.steps, *sizes, title=title)

    if options.device == "cpu":
        rocmkern.use("cpu")
    torch.set_num_threads(2)
    losses: dict[str, Any] = {"rocmkern": run(OURS, "rocmkern"), "PyTorch": run(OF_TORCH, "PyTorch")}
    print(f"the two losses are {distance(*losses.values()):.2e} apart")
    if options.spread:
        losses["PyTorch, weights next to these"] = run(OF_TORCH, "PyTorch, weights next to these", beside=True)
        torch.set_num_threads(1)
        losses["PyTorch, one thread"] = run(OF_TORCH, "PyTorch, one thread")
        for name in list(losses)[2:]:
            print(f"{name}: {distance(losses['PyTorch'], losses[name]):.2e} from PyTorch's")
    series = {name: [(step + 1.0, loss) for step, loss in enumerate(each)] for name, each in losses.items()}
    options.plot.write_text(chart(series, "step", "loss in nats", joined=True))
    print(options.plot)


if __name__ == "__main__":
    main()
