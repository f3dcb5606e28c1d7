"""What the ranks of the tests do: functions that `LocalRanks` calls in each process, as ``group, *arguments``."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

import rocmkern
from rocmkern import distributed
from rocmkern.calls.adapters.to_torch import as_given, as_torch
from rocmkern.decoder import Decoder, QuantizedWeight
from rocmkern.distributed import heartbeat
from rocmkern.distributed import ranks as ranks_module
from rocmkern.distributed.ranks import control_of, ranks_of
from rocmkern.runtime.manager import default_manager

heartbeat.SILENCE = 8.0  # processes of a busy machine may get no time for seconds
ranks_module.TIMEOUT = 600.0


@contextlib.contextmanager
def place_of(group):
    """Where the ranks of a group compute, as what brings an array there: the CPU with gloo, a card each with NCCL."""
    if dist.get_backend(group) == "gloo":
        with rocmkern.using("cpu"):
            yield lambda x: x
    else:
        yield on_card


def on_card(x):
    """An array, or that of quantized weights, as a tensor on this rank's card."""
    if isinstance(x, QuantizedWeight):
        return QuantizedWeight(on_card(x.blocks), x.format)
    return None if x is None else as_torch("x", x, (x.dtype,)).cuda()


def as_numpy(x):
    """An array of any kind and place."""
    return x if isinstance(x, np.ndarray) else as_given(as_torch("x", x).cpu(), np.empty(0))


def numbers_over_a_control_of_its_own(group):
    """The numbers of the ranks, by the short messages of a group whose backend reaches no host memory."""
    real, dist.get_backend_config = dist.get_backend_config, lambda _: "cuda:nccl"
    try:
        control = control_of(dist.group.WORLD if group is None else group)
    finally:
        dist.get_backend_config = real
    found = [torch.empty(1) for _ in range(dist.get_world_size(group))]
    control.allgather([found], [torch.full((1,), float(dist.get_rank(group)))]).wait()
    return [int(x) for x in found]


def attention(group, q, k, v, options):
    """Out, lse and the bytes sent."""
    ranks = ranks_of(group)
    before = ranks.sent
    with place_of(group) as put:
        options = {**options, "sinks": put(options.get("sinks"))}
        out, lse = distributed.attention(*map(put, (q, k, v)), group=group, return_lse=True, **options)
    return as_numpy(out), as_numpy(lse), ranks.sent - before


def plain_attention(group, q, k, v, options):
    """Out and lse of all tokens on one rank."""
    with place_of(group) as put:
        options = {**options, "sinks": put(options.get("sinks"))}
        out, lse = rocmkern.flash_attention(*map(put, (q, k, v)), return_lse=True, **options)
    return as_numpy(out), as_numpy(lse)


def gradients(group, q, k, v, sinks, dout, dlse, options):
    """Those of q, k, v and the sinks, twice, and the bytes sent."""
    ranks, found = ranks_of(group), []
    before = ranks.sent
    with place_of(group) as put, torch.enable_grad():
        given = [as_torch("x", put(x)).requires_grad_() for x in (q, k, v, sinks) if x is not None]
        weights = [as_torch("x", put(x)) for x in (dout, dlse) if x is not None]
        for _ in range(2):
            more = {} if sinks is None else {"sinks": given[3]}
            results = distributed.attention(*given[:3], group=group, return_lse=True, **more, **options)
            found.append([as_numpy(x) for x in torch.autograd.grad(results[: len(weights)], given, weights)])
    return *found, ranks.sent - before


def plain_gradients(group, q, k, v, sinks, dout, dlse, options):
    """Those of all tokens on one rank."""
    last = {} if sinks is None else {"return_dsinks": True}
    with place_of(group) as put:
        q, k, v, dout, dlse = map(put, (q, k, v, dout, dlse))
        options = {**options, "sinks": put(sinks)}
        out, lse = rocmkern.flash_attention(q, k, v, return_lse=True, **options)
        found = rocmkern.flash_attention_backward(dout, q, k, v, out, lse, dlse=dlse, **options, **last)
    return [as_numpy(x) for x in found]


def of_host_memory(group):
    """What NCCL does not reach."""
    x = torch.ones(1, 1, 2, 16)
    return distributed.attention(x, x, x, group=group)


def of_a_card(group):
    """What gloo does not reach; there need not be a card to ask."""
    return ranks_of(group).check_place("q", SimpleNamespace(device=torch.device("cuda:0")))


def beside_numpy(group, names):
    """Gradients of q where some other arguments are arrays of NumPy, and the message where q is one itself."""
    given = {name: torch.linspace(-1, 1, 160).reshape(1, 2, 5, 16) for name in "qkv"} | {"sinks": torch.zeros(2)}
    with rocmkern.using("cpu"), torch.enable_grad():
        given["q"].requires_grad_()
        distributed.attention(**given, group=group).sum().backward()
        expected, given["q"].grad = given["q"].grad, None
        given |= {name: given[name].numpy() for name in names}
        distributed.attention(**given, group=group).sum().backward()
        same = torch.equal(given["q"].grad, expected)
        given |= {"q": given["q"].detach().numpy(), "v": torch.ones(1, 2, 5, 16, requires_grad=True)}
        try:
            distributed.attention(**given, group=group)
        except rocmkern.ArgumentError as error:
            return same, str(error)


def under_autocast(group):
    """Dtypes of a result and of the gradient of q."""
    q = torch.ones(1, 2, 5, 16, requires_grad=True)
    with rocmkern.using("cpu"), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        out = distributed.attention(q, q.detach(), q.detach().bfloat16(), group=group)
    with rocmkern.using("cpu"), torch.enable_grad():
        out.float().sum().backward()
    return str(out.dtype), str(q.grad.dtype)


def trained_layer(group):
    """What a layer over ranks says of weights that ask for a gradient."""
    x, weight = torch.ones(3, 8), torch.ones(4, 8, requires_grad=True)
    with rocmkern.using("cpu"), torch.enable_grad():
        try:
            distributed.linear(x, weight, by="columns", group=group)
        except rocmkern.ArgumentError as error:
            return str(error)


def gradient_of_some(group, asks):
    """What a rank finds where some ask for a gradient and others do not."""
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


def until_it_fails(group, steps, timeout):
    """The first error of many calls, and the bytes that are still held afterwards."""
    rng = np.random.default_rng(0)
    found = None
    with rocmkern.using("cpu"), rocmkern.ResourceManager("host") as manager:
        q, k, v = (manager.from_numpy(rng.standard_normal((1, 4, 64, 32), dtype=np.float32)) for _ in range(3))
        for _ in range(steps + 1):
            try:
                distributed.attention(q, k, v, group=group, causal=True, split="zigzag", timeout=timeout)
            except rocmkern.PeerError as error:
                found = error.with_traceback(None)
                found.__cause__ = found.__context__ = None
                break
        for x in (q, k, v):
            x.close()
        leaked = manager.memory_stats().held
    return found, leaked


def waits_for(group, source, timeout):
    """What a rank is told that waits for one other rank and for nothing else."""
    ranks = ranks_of(group)
    try:
        with ranks.call("waits_for", timeout):
            ranks.exchange([], [(source, torch.empty(1))]).wait()
    except rocmkern.PeerError as error:
        return error
    return None


def linears(group, x, columns, rows, options):
    """A layer by columns and one by rows, both without an exchange between them."""
    with place_of(group) as put:
        own = distributed.linear(put(x), *map(put, columns), "gelu", by="columns", group=group, **options)
        out = distributed.linear(own, *map(put, rows), by="rows", group=group, **options)
    return as_numpy(own), as_numpy(out)


def plain_linears(group, x, columns, rows):
    """The same layers on one rank."""
    with place_of(group) as put:
        own = rocmkern.linear(put(x), *map(put, columns), "gelu")
        return as_numpy(own), as_numpy(rocmkern.linear(own, *map(put, rows)))


def mlp(group, x, weights, options):
    with place_of(group) as put:
        return as_numpy(distributed.mlp(put(x), *map(put, weights), group=group, **options))


def plain_mlp(group, x, weights):
    with place_of(group) as put:
        return as_numpy(rocmkern.mlp(put(x), *map(put, weights)))


def generated(group, config, weights, prompts, options):
    """What a decoder over ranks draws, the logits after the prompts, and the shape of a rank's cache."""
    with place_of(group):
        decoder = distributed.ParallelDecoder(config, _beside_cache(group, weights), group=group)
        return _drawn(decoder, prompts, options)


def plain_generated(group, config, weights, prompts, options):
    """The same of a decoder that knows nothing of ranks."""
    with place_of(group):
        return _drawn(Decoder(config, _beside_cache(group, weights)), prompts, options)


def _drawn(decoder, prompts, options):
    with decoder.new_cache(16, 4) as cache:
        logits = decoder.logits(cache, [cache.add() for _ in prompts], prompts, every=True)
        logits, shape = np.asarray(logits), cache.keys.shape
    return decoder.generate(prompts, 12, **options), logits, shape


def _beside_cache(group, weights):
    """The weights of a decoder where its cache will be."""
    if dist.get_backend(group) == "gloo":
        return weights
    put = default_manager(torch.cuda.current_device()).from_numpy
    return {
        name: QuantizedWeight(put(x.blocks), x.format) if isinstance(x, QuantizedWeight) else put(x)
        for name, x in weights.items()
    }


def peak_memory(group, tokens, heads, dim, dtype, options):
    """What arguments and a call take at most: of resident memory above the start, and of tensors that are made.

    Also the bytes of one argument.
    """

    def drawn():
        generator = torch.Generator().manual_seed(0)
        of = {"generator": generator, "dtype": getattr(torch, dtype)}
        return [torch.randn(1, heads, tokens, dim, **of) for _ in range(3)]

    with rocmkern.using("cpu"):
        distributed.attention(*drawn(), group=group, **options)  # compiles what is not there yet
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # where the allocator starts from, not what it does
        before = _bytes("VmRSS")
        arrays = drawn()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        distributed.attention(*arrays, group=group, **options)
        resident = _bytes("VmHWM") - before
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            distributed.attention(*arrays, group=group, **options)
    # As recorded: `profile.events` leaves out what is freed while a message is on its way.
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    made = max(itertools.accumulate(event.nbytes() for event in events))
    return resident, 3 * arrays[0].nbytes + made, arrays[0].nbytes


def _bytes(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def llama(group, split, mode, window, tokens):
    """Logits of this rank's tokens, and those of all tokens by one process."""
    # Only the tests of models need it.
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


def compiled(group):
    """How far a compiled call and its gradients are from the call, and why gradients of gradients are refused."""
    torch.manual_seed(dist.get_rank(group))
    arrays = [torch.randn(1, 2, 12, 8, requires_grad=True) for _ in range(3)]

    def attended(q, k, v):
        return distributed.attention(q * 1, k * 1, v * 1, group=group, causal=True) + 1

    with rocmkern.using("cpu"), torch.enable_grad():
        out, again = attended(*arrays), torch.compile(attended, backend="eager")(*arrays)
        pairs = zip(torch.autograd.grad(out.sum(), arrays), torch.autograd.grad(again.sum(), arrays), strict=True)
        difference = max(float((x - y).abs().max()) for x, y in [(out, again), *pairs])
        try:
            torch.autograd.grad(attended(*arrays).sum(), arrays, create_graph=True)
        except rocmkern.ArgumentError as error:
            return difference, str(error)
    return difference, ""
