"""Train a small decoder on this library's documentation, by its operations and by PyTorch's, and compare the losses.

    python examples/train.py                     # 200 steps of two layers
    python examples/train.py --steps 1000 --device cuda --dtype bfloat16

Tokens are bytes. Both models begin with the same numbers and see the same text. PyTorch is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn import functional

import rocmkern

VOCABULARY, WIDTH, HIDDEN, HEADS, KV_HEADS, LAYERS = 256, 64, 128, 4, 2, 2
BATCH, LENGTH = 4, 64


class Operations(Protocol):
    """What a decoder is made of; q, k and v are ``[batch, length, heads, head_dim]``."""

    def embedding(self, table: Any, tokens: Any) -> Any: ...
    def norm(self, x: Any, weight: Any) -> Any: ...
    def linear(self, x: Any, weight: Any) -> Any: ...
    def rotated(self, x: Any, positions: Any) -> Any: ...
    def attention(self, q: Any, k: Any, v: Any) -> Any: ...
    def gated(self, gate: Any, up: Any) -> Any: ...
    def loss(self, x: Any, table: Any, targets: Any) -> Any: ...


class Ours:
    """By this library."""

    embedding = staticmethod(rocmkern.embedding)
    norm = staticmethod(rocmkern.rms_norm)
    linear = staticmethod(rocmkern.linear)
    rotated = staticmethod(rocmkern.rope)
    gated = staticmethod(rocmkern.swiglu)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        return rocmkern.flash_attention(q, k, v, layout="bshd", causal=True)

    def loss(self, x: Any, table: Any, targets: Any) -> Any:
        return rocmkern.linear_cross_entropy(x, table, targets)[0]  # the logits are never there as a whole


class PyTorchs:
    """By PyTorch."""

    linear = staticmethod(functional.linear)

    def embedding(self, table: Any, tokens: Any) -> Any:
        return functional.embedding(tokens, table)

    def norm(self, x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, weight.shape, weight, 1e-6)

    def rotated(self, x: Any, positions: Any) -> Any:
        half = x.shape[-1] // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
        angles = positions[:, None, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    def gated(self, gate: Any, up: Any) -> Any:
        return functional.silu(gate) * up

    def loss(self, x: Any, table: Any, targets: Any) -> Any:
        return functional.cross_entropy((x @ table.T).flatten(0, 1).float(), targets.flatten())


class Decoder(torch.nn.Module):
    """A decoder of the Llama family, whose table of tokens also gives the logits."""

    def __init__(self, operations: Operations, seed: int = 0):
        super().__init__()
        self.operations, head = operations, WIDTH // HEADS
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> torch.nn.Parameter:
            numbers = torch.randn(shape, generator=generator) * 0.02 if len(shape) > 1 else torch.ones(shape)
            return torch.nn.Parameter(numbers)

        shapes = {"first": (WIDTH,), "qkv": ((HEADS + 2 * KV_HEADS) * head, WIDTH), "out": (WIDTH, WIDTH)}
        shapes |= {"second": (WIDTH,), "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
        self.table, self.last = weight(VOCABULARY, WIDTH), weight(WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({name: weight(*shape) for name, shape in shapes.items()}) for _ in range(LAYERS)
        )

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of the next tokens, ``[batch, length]`` both."""
        do = self.operations
        x, positions = do.embedding(self.table, tokens), torch.arange(tokens.shape[1], device=tokens.device)
        for layer in self.layers:
            qkv = do.linear(do.norm(x, layer["first"]), layer["qkv"]).unflatten(-1, (-1, WIDTH // HEADS))
            q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 2)
            attended = do.attention(do.rotated(q, positions), do.rotated(k, positions), v)
            x = x + do.linear(attended.flatten(2), layer["out"])
            h = do.norm(x, layer["second"])
            x = x + do.linear(do.gated(do.linear(h, layer["gate"]), do.linear(h, layer["up"])), layer["down"])
        return do.loss(do.norm(x, self.last), self.table, targets)


def text() -> torch.Tensor:
    """The documentation as bytes."""
    root = Path(__file__).resolve().parents[1]
    files = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return torch.tensor(list(b"\n".join(file.read_bytes() for file in files)))


def batches(numbers: torch.Tensor, steps: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and the ones that follow them, from drawn places."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(numbers) - LENGTH - 1, (BATCH, 1), generator=generator)
        rows = numbers[starts + torch.arange(LENGTH + 1)]
        yield rows[:, :-1], rows[:, 1:]


def losses(operations: Operations, steps: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[float]:
    """The loss of each step of a model that begins with the same numbers, whatever the operations."""
    model = Decoder(operations).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for tokens, targets in batches(text(), steps):
        loss = model(tokens.to(device), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description="Train a small decoder by this library and by PyTorch.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args(arguments)
    runs = [losses(kind, given.steps, given.device, getattr(torch, given.dtype)) for kind in (Ours(), PyTorchs())]
    for step, (ours, theirs) in enumerate(zip(*runs, strict=True)):
        if step % 20 == 0 or step == given.steps - 1:
            print(f"step {step:4d}  loss {ours:.4f}  PyTorch {theirs:.4f}")


if __name__ == "__main__":
    main()
