"""Time what a model of Transformers takes to generate: PyTorch's attention, ours, and ours in a patched model.

    python benchmarks/transformers_generate.py                   # on a card: Llama of 8 layers, 2048 wide
    python benchmarks/transformers_generate.py --dtype float32 --layers 2 --width 128 --vocab 1000 --prompt 64
    python benchmarks/transformers_generate.py --linear q8_0     # the patched model with quantized layers
    python benchmarks/transformers_generate.py --host            # what attention costs the host beside its kernel

The weights are random and the prompts have no padding, or `--left N` tokens of it in the first row. The ways run in
turns in one process, and the tokens of each are compared with those of PyTorch's attention: in half precision the
first that differs may come early, and says nothing.

Printed for each way: medians of the time to the first token and of the time for each further one, and their ratios to
those of sdpa: below 1 ours is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import transformers

import rocmkern
from rocmkern import transformers as ours
from rocmkern.transformers.attention import attention_forward


def model_of(asked: argparse.Namespace) -> Any:
    """A Llama of random weights."""
    config = transformers.LlamaConfig(
        vocab_size=asked.vocab,
        hidden_size=asked.width,
        intermediate_size=asked.width * 11 // 4,
        num_hidden_layers=asked.layers,
        num_attention_heads=max(1, asked.width // 128),
        num_key_value_heads=max(1, asked.width // 512),
        head_dim=min(128, asked.width),
        max_position_embeddings=8192,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(asked.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, asked.dtype)).eval()
    model.generation_config.eos_token_id = None
    return model


class Ways:
    """The same model in the ways that are compared."""

    def __init__(self, model: Any, linear: str | None) -> None:
        self.model, self.linear, self.patched = model, linear, False

    def use(self, way: str) -> None:
        """Make the model work that way."""
        if self.patched:
            ours.unpatch(self.model)
        self.patched = way == "patched"
        self.model.set_attn_implementation("sdpa" if way == "sdpa" else "rocmkern")
        if self.patched:
            ours.patch(self.model, linear=self.linear)


def wait(device: str) -> None:
    """Wait until a device has done its work."""
    if device != "cpu":
        torch.cuda.current_stream().synchronize()


def timed(model: Any, inputs: dict[str, Any], tokens: int, device: str) -> tuple[float, torch.Tensor]:
    """Seconds of a greedy generation, and its tokens."""
    wait(device)
    start = time.perf_counter()
    out = model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    wait(device)
    return time.perf_counter() - start, out


def compare(asked: argparse.Namespace) -> None:
    """Print the table."""
    ways = Ways(model_of(asked), asked.linear)
    prompt = torch.randint(1, asked.vocab, (asked.batch, asked.prompt), device=asked.device)
    seen = torch.ones_like(prompt)
    seen[0, : asked.left] = 0
    inputs = {"input_ids": prompt, "attention_mask": seen}
    names = ("sdpa", "registered", "patched")
    first: dict[str, list[float]] = {name: [] for name in names}
    whole: dict[str, list[float]] = {name: [] for name in names}
    made: dict[str, torch.Tensor] = {}
    for turn in range(asked.repeat + 1):
        for name in names:
            ways.use(name)
            timed(ways.model, inputs, 2, asked.device)  # what is compiled or planned once
            one = timed(ways.model, inputs, 1, asked.device)[0]
            all_of_them, made[name] = timed(ways.model, inputs, asked.tokens, asked.device)
            if turn:
                first[name].append(one)
                whole[name].append((all_of_them - one) / max(1, asked.tokens - 1))
    base = [statistics.median(times["sdpa"]) for times in (first, whole)]
    print(f"{'':12}{'first token':>14}{'ratio':>8}{'each further':>15}{'ratio':>8}  same tokens as sdpa")
    for name in names:
        one, more = (statistics.median(times[name]) for times in (first, whole))
        same = (made[name] == made["sdpa"])[:, asked.prompt :].float().mean().item()
        row = f"{name:12}{one * 1e3:11.2f} ms{one / base[0]:8.3f}{more * 1e3:12.3f} ms{more / base[1]:8.3f}"
        print(f"{row}  {same:.0%}")


def host(asked: argparse.Namespace) -> None:
    """Print what a step of decoding costs the host in the attention function, in the call it makes, and in sdpa."""
    model = model_of(asked)
    module = model.model.layers[0].self_attn
    config, dtype = model.config, getattr(torch, asked.dtype)
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    query = torch.randn(asked.batch, 1, heads, size, dtype=dtype, device=asked.device).transpose(1, 2)
    key, value = torch.randn(2, asked.batch, groups, asked.prompt, size, dtype=dtype, device=asked.device)
    scale = module.scaling

    def direct() -> None:
        q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        rocmkern.flash_attention(q, k, v, layout="bshd", causal=True, scale=scale)

    sdpa = transformers.AttentionInterface()["sdpa"]
    functions = {
        "attention function": lambda: attention_forward(module, query, key, value, None, scaling=scale),
        "flash_attention": direct,
        "sdpa's function": lambda: sdpa(module, query, key, value, None, scaling=scale),
    }
    found: dict[str, list[float]] = {name: [] for name in functions}
    with torch.inference_mode():
        for _ in range(asked.repeat + 1):
            for name, function in functions.items():
                wait(asked.device)
                start = time.perf_counter()
                for _ in range(200):
                    function()
                found[name].append((time.perf_counter() - start) / 200)  # the device runs behind: not waited for
                wait(asked.device)
    for name, times in found.items():
        print(f"{name:20}{min(times) * 1e6:9.1f} us a call")


def main() -> None:
    """Time what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--linear", default=None)
    parser.add_argument("--host", action="store_true")
    defaults = {"layers": 8, "width": 2048, "vocab": 32000, "batch": 4, "prompt": 512, "tokens": 64}
    for name, number in {**defaults, "left": 0, "repeat": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    asked = parser.parse_args()
    ours.register()
    host(asked) if asked.host else compare(asked)


if __name__ == "__main__":
    main()
