"""What the ranks of the tests do: functions that `LocalRanks` calls in each process, as ``group, *arguments``."""

from __future__ import annotations

import ctypes
import gc
import time
from pathlib import Path

import numpy as np

import rocmkern
from rocmkern import distributed
from rocmkern.distributed.ranks import ranks_of


def attention(group, q, k, v, options):
    """Out, lse and the bytes sent."""
    ranks = ranks_of(group)
    before = ranks.sent
    with rocmkern.using("cpu"):
        out, lse = distributed.attention(q, k, v, group=group, return_lse=True, **options)
    return out, lse, ranks.sent - before


def gradients(group, q, k, v, sinks, dout, dlse, options):
    """Those of q, k, v and the sinks, twice, and the bytes sent."""
    # Only the tests of gradients need it.
    import torch

    given = [torch.from_numpy(x) for x in (q, k, v)] + ([] if sinks is None else [torch.from_numpy(sinks)])
    given = [x.requires_grad_() for x in given]
    ranks, found = ranks_of(group), []
    before = ranks.sent
    with rocmkern.using("cpu"), torch.enable_grad():
        for _ in range(2):
            more = {} if sinks is None else {"sinks": given[3]}
            out, lse = distributed.attention(*given[:3], group=group, return_lse=True, **more, **options)
            weights = torch.from_numpy(dout), torch.from_numpy(dlse)
            found.append([x.numpy() for x in torch.autograd.grad((out, lse), given, weights)])
    return *found, ranks.sent - before


def gradient_of_some(group, asks):
    """What a rank finds where some ask for a gradient and others do not."""
    # Only the tests of gradients need it.
    import torch

    x = torch.ones(1, 1, 2, 16, requires_grad=asks)
    with rocmkern.using("cpu"), torch.enable_grad():
        try:
            return distributed.attention(x, x, x, group=group, timeout=20.0).shape
        except rocmkern.ArgumentError as error:
            return error.argument, error.given


def absent(group, stays_away):
    """A rank that is alive and does not come."""
    if stays_away:
        time.sleep(5)
        return "absent"
    x = np.ones((1, 1, 2, 16), np.float32)
    with rocmkern.using("cpu"):
        return distributed.attention(x, x, x, group=group, timeout=1.0)


def until_it_fails(group, steps):
    """The first error of many calls, when it came, and the bytes that are still held afterwards."""
    rng = np.random.default_rng(0)
    found = None
    with rocmkern.using("cpu"), rocmkern.ResourceManager("host") as manager:
        q, k, v = (manager.from_numpy(rng.standard_normal((1, 4, 64, 32), dtype=np.float32)) for _ in range(3))
        for _ in range(steps + 1):
            try:
                # The first call may compile a kernel.
                timeout = 5.0 if steps else 120.0
                distributed.attention(q, k, v, group=group, causal=True, split="zigzag", timeout=timeout)
            except rocmkern.PeerError as error:
                found = error.with_traceback(None)
                found.__cause__ = found.__context__ = None
                break
        when = time.time()
        for x in (q, k, v):
            x.close()
        leaked = manager.memory_stats().held
    return found, when, leaked


def linears(group, x, columns, rows, options):
    """A layer by columns and one by rows, both without an exchange between them."""
    with rocmkern.using("cpu"):
        own = distributed.linear(x, *columns, "gelu", by="columns", group=group, **options)
        return own, distributed.linear(own, *rows, by="rows", group=group, **options)


def mlp(group, x, weights, options):
    with rocmkern.using("cpu"):
        return distributed.mlp(x, *weights, group=group, **options)


def generated(group, config, weights, prompts, options):
    """Tokens that are drawn, and the logits after the prompts."""
    with rocmkern.using("cpu"):
        decoder = distributed.ParallelDecoder(config, weights, group=group)
        with decoder.new_cache(16, 4) as cache:
            logits = decoder.logits(cache, [cache.add() for _ in prompts], prompts, every=True)
            shape = cache.keys.shape
        return decoder.generate(prompts, 12, **options), np.asarray(logits), shape


def peak_memory(group, tokens, heads, options):
    """By how much a call raises the resident memory of this process at most, and the bytes of its arguments."""
    x = np.random.default_rng(0).standard_normal((3, 1, heads, tokens, 64), dtype=np.float32)
    with rocmkern.using("cpu"):
        distributed.attention(*x, group=group, **options)  # compiles what is not there yet
        gc.collect()
        libc = ctypes.CDLL(None)
        # M_MMAP_THRESHOLD: what is freed goes back at once, so that the peak is what is held, not what glibc keeps.
        libc.mallopt(-3, 65536)
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = _kilobytes("VmRSS")
        distributed.attention(*x, group=group, **options)
        return (_kilobytes("VmHWM") - before) * 1024, x.nbytes


def _kilobytes(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def llama(group, split, mode, window, tokens):
    """Logits of this rank's tokens, and those of all tokens by one process."""
    # Only the tests of models need it.
    import torch
    from transformers import AutoModelForCausalLM, MistralConfig

    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = MistralConfig(**sizes, **heads, sliding_window=window)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(0, 50, (1, tokens))
    with rocmkern.using("cpu"), torch.no_grad():
        whole = model(ids, use_cache=False).logits
        distributed.register_attention("rocmkern_ranks", group=group, split=split, mode=mode)
        model.set_attn_implementation("rocmkern_ranks")
        positions = distributed.sequence_positions(tokens, split=split, group=group)
        place = torch.from_numpy(positions).long()[None]
        own = model(ids[:, place[0]], position_ids=place, use_cache=False).logits
    return own.numpy(), whole.numpy()
