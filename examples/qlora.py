"""Fine-tuning of weights that are frozen in 4 bits (QLoRA: Dettmers et al., 2023), with the gradients of rocmkern.

    python examples/qlora.py                    # 100 steps, and loss.svg
    python examples/qlora.py --device cuda      # on a card, AMD's too

The decoder of `train_decoder` learns the documentation first. Then its projections are encoded as Q4_K, and it has to
read something else, the source of the kernels: each projection gets two small matrices beside it, ``x W^T + x A^T B^T``
with A [r, n] and B [m, r], which are all that is trained. Gradients pass the encoded weights without decoding all of
them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from train_decoder import OURS, ROOT, Weights, loss_of, steps_of, text, weights

import rocmkern
from rocmkern.matrix.report.plots import chart

FORMAT, RANK = "q4_k", 8


class Frozen:
    """A projection in 4 bits, and what is trained beside it; `linear` takes it for a weight."""

    def __init__(self, weight: torch.Tensor, rng: np.random.Generator):
        encoded = rocmkern.quantize(weight.detach().float().cpu().numpy(), FORMAT)
        self.blocks = torch.from_numpy(encoded).to(weight.device)
        rows, columns = weight.shape
        down = torch.tensor(rng.standard_normal((RANK, columns)) * columns**-0.5)
        self.down = down.to(weight.device, weight.dtype).requires_grad_()
        self.up = torch.zeros(rows, RANK, device=weight.device, dtype=weight.dtype, requires_grad=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        added = rocmkern.linear(rocmkern.linear(x, self.down), self.up)
        return rocmkern.quantized_linear(x, self.blocks, FORMAT) + added


def linear(x: torch.Tensor, weight: torch.Tensor | Frozen) -> torch.Tensor:
    """A projection, frozen or not."""
    return weight(x) if isinstance(weight, Frozen) else rocmkern.linear(x, weight)


def frozen(w: Weights) -> tuple[dict[str, torch.Tensor | Frozen], list[torch.Tensor]]:
    """The weights with frozen projections, and what is trained."""
    rng = np.random.default_rng(2)
    names = [name for name in w if w[name].ndim == 2 and name not in ("embedding", "head")]
    projections = {name: Frozen(w[name], rng) for name in names}
    others = {name: weight.detach() for name, weight in w.items() if name not in projections}
    return {**others, **projections}, [x for each in projections.values() for x in (each.down, each.up)]


def main() -> None:
    """Train, freeze, tune, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plot", type=Path, default=Path("loss.svg"))
    options = parser.parse_args()
    if options.device == "cpu":
        rocmkern.use("cpu")

    w = weights(options.device, torch.float32)
    steps_of(lambda ids: loss_of(OURS, w, ids), list(w.values()), text(), options.steps, title="documentation")
    source = b"\n".join(path.read_bytes() for path in sorted((ROOT / "rocmkern/ops").rglob("kernels/*.py")))
    data = np.frombuffer(source, np.uint8).astype(np.int64)
    model, trained = frozen(w)
    functions = OURS._replace(linear=linear)
    losses = steps_of(lambda ids: loss_of(functions, model, ids), trained, data, options.steps, title="kernels, 4 bits")

    ends = len(losses) // 5
    before, after = np.mean(losses[:ends]), np.mean(losses[-ends:])
    size = sum(x.numel() for x in trained)
    print(f"loss of the first {ends} steps {before:.3f}, of the last {after:.3f}; {size} numbers were trained")
    assert after < before
    options.plot.write_text(chart({"LoRA": [(i + 1.0, x) for i, x in enumerate(losses)]}, "step", "loss in nats", True))
    print(options.plot)


if __name__ == "__main__":
    main()
