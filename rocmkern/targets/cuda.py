"""NVIDIA GPUs: numba-cuda makes PTX of a kernel, and the CUDA driver loads and launches it.

`compile_kernel` needs no device: it runs wherever numba-cuda and the CUDA compiler's libraries are installed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocmkern.architectures import architecture
from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.runtime.numba_switches import code_settings
from rocmkern.runtime.versions import installed_version
from rocmkern.targets import entries, source
from rocmkern.targets.entries import Entry, EntryError
from rocmkern.targets.gpu import CodeRefusedError, GpuTarget, LoadedVariant
from rocmkern.targets.messages import first_message
from rocmkern.targets.tensor_maps import MAP_BYTES, TensorMap, with_maps
from rocmkern.targets.words import ParameterBuffer
from rocmkern.tile import entry
from rocmkern.tile.check import check_consumed
from rocmkern.tile.language.kernel import Config, Kernel

TEMPLATE = """\
def launch({words}):
    body(
        config(CFG, 0, 0, 0),
        {arguments},
    )
"""

#: ``CU_LAUNCH_PARAM_END``
PARAMETERS_END = 0
#: Of a block, whatever the card; and of a launch (parameters are at most 32764 bytes).
MOST_THREADS, MOST_SHARED_BYTES, MOST_WORDS = 1024, 2**20, 4095
#: What the driver says of code that it does not take.
_REFUSALS = frozenset(
    ["INVALID_IMAGE", "INVALID_PTX", "INVALID_SOURCE", "NO_BINARY_FOR_GPU", "NOT_FOUND", "UNSUPPORTED_PTX_VERSION"]
)


@dataclass(frozen=True)
class CompiledKernel:
    """PTX of one variant of a kernel.

    Attributes
    ----------
    name : str
        Entry point in the PTX.
    ptx : str
        Code for one architecture.
    words : int
        Number of 64-bit words that a launch takes (see `rocmkern.tile.entry`).
    threads : int
        Threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block, in bytes.
    maps : tuple of TensorMap
        What it takes behind the words.
    overlaps : bool
        Whether its blocks may be brought in while the launch before it still runs; they wait for its end themselves.
    """

    name: str
    ptx: str
    words: int
    threads: int
    shared_bytes: int
    maps: tuple[TensorMap, ...] = ()
    overlaps: bool = False

    @property
    def launch(self) -> dict[str, Any]:
        """Its launch fields in an entry of the cache."""
        return {
            "name": self.name,
            "words": self.words,
            "threads": self.threads,
            "shared_bytes": self.shared_bytes,
            "maps": [dataclasses.asdict(each) for each in self.maps],
            "overlaps": self.overlaps,
        }

    @classmethod
    def of(cls, entry: Entry) -> CompiledKernel:
        """What an entry holds; `EntryError` where a field is not what it should be."""
        launch = entries.checked(
            entry.launch, name=entries.is_symbol, words=entries.is_count(MOST_WORDS),
            threads=entries.is_count(MOST_THREADS, 1), shared_bytes=entries.is_count(MOST_SHARED_BYTES),
            maps=lambda maps: isinstance(maps, list), overlaps=entries.is_flag,
        )  # fmt: skip
        try:
            ptx = entry.code.decode("ascii")
        except UnicodeDecodeError:
            raise EntryError("its code is no PTX") from None
        maps = tuple(TensorMap.of(fields, launch["words"]) for fields in launch["maps"])
        return cls(**{**launch, "maps": maps}, ptx=ptx)


def compile_kernel(kernel: Kernel, cfg: Config, dtypes: Sequence[str]) -> CompiledKernel:
    """Compile one variant for ``cfg.arch`` (``sm_80`` and later).

    Parameters
    ----------
    kernel, cfg
        A function marked with `kernel`, and its configuration.
    dtypes : sequence of str
        Element type of each tensor argument.

    Raises
    ------
    TileError
        The kernel misuses the tile language, or its windows do not fit into shared memory.
    TargetError
        The architecture is not an NVIDIA one with matrix instructions.
    """
    # deferred: start-up
    from numba.core.errors import NumbaError

    # deferred: optional dependency
    from numba.cuda import types
    from numba.cuda.compiler import compile as compile_ptx
    from numba.cuda.core.errors import NumbaError as NumbaCudaError

    # deferred: start-up
    from rocmkern.tile._lowering import cuda as lowering

    if not lowering.has_matrix_instructions(cfg.arch):
        raise TargetError(f"arch {cfg.arch!r} cannot be compiled by the CUDA target; allowed: sm_80 and later")
    check_consumed(kernel, cfg)
    lowering.install(kernel)
    n_words = sum(entry.words_of(p) for _, p in kernel.parameters)
    text = TEMPLATE.format(
        words=", ".join(f"w{i}" for i in range(n_words)),
        arguments=",\n        ".join(_argument_expressions(kernel, cfg, dtypes)),
    )
    space: dict[str, Any] = {
        "CFG": lowering.bound_config(cfg),
        "body": lowering.device_function(kernel),
        "config": entry.config,
        "float32": entry.float32,
        "mapped": entry.mapped,
        "tensor": entry.tensor,
    }
    exec(compile(text, f"<{kernel.__name__}>", "exec"), space)
    threads = lowering.LANES * cfg.waves
    capability = compute_capability(cfg.arch)
    token = lowering.COMPUTE_CAPABILITY.set(capability)
    try:
        ptx, _ = compile_ptx(
            space["launch"],
            types.void(*[types.int64] * n_words),  # type: ignore[attr-defined]  # made when it is imported
            device=False,
            abi="numba",
            cc=capability,
            launch_bounds=(threads, cfg.resident) if cfg.resident else threads,
        )
    except (NumbaError, NumbaCudaError) as e:
        raise TileError(f"kernel {kernel.__name__} for {cfg}: {first_message(e)}") from None
    finally:
        lowering.COMPUTE_CAPABILITY.reset(token)
    name = re.search(r"\.entry\s+([\w$]+)", ptx).group(1)  # type: ignore[union-attr]
    ends = [int(n) for n in re.findall(rf"{lowering.SHARED_MEMORY_SYMBOL}(\d+)", ptx)]
    shared_bytes, limit = max(ends, default=0), architecture(cfg.arch).shared_bytes
    if shared_bytes > limit:
        raise TileError(
            f"kernel {kernel.__name__} for {cfg}: its stages take {shared_bytes} bytes of shared memory (two windows "
            f"each, and large operands); {cfg.arch} has {limit}: use smaller blocks"
        )
    ptx, maps = with_maps(ptx, lowering.MAP_SYMBOL)
    return CompiledKernel(name, ptx, n_words, threads, shared_bytes, maps, lowering.can_overlap(cfg))


def _argument_expressions(kernel: Kernel, cfg: Config, dtypes: Sequence[str]) -> list[str]:
    """As `source.argument_expressions`; what is read can have a tensor map where several windows are on their way."""
    expressions, at = source.argument_expressions(kernel, dtypes, "w{}"), 0
    for i, (_, parameter) in enumerate(kernel.parameters):
        if cfg.num_stages > 1 and parameter.kind == "tensor" and not parameter.output:
            expressions[i] = f"mapped({expressions[i]}, {at})"
        at += entry.words_of(parameter)
    return expressions


def compute_capability(arch: str) -> tuple[int, int] | tuple[int, int, str]:
    """``sm_80`` as (8, 0), ``sm_90``, which is compiled for ``sm_90a``, as (9, 0, "a")."""
    major, minor, only = re.fullmatch(r"sm_(\d+)(\d)(a?)", architecture(arch).processor).groups()  # type: ignore[union-attr]
    capability = int(major), int(minor)
    return (*capability, only) if only else capability


class LoadedKernel(LoadedVariant):
    """A compiled kernel on the current device, ready to be launched from any thread."""

    kernel: CompiledKernel

    def __init__(self, kernel: CompiledKernel):
        # deferred: optional dependency
        from cuda.bindings import driver

        super().__init__(kernel.name, kernel.words, PARAMETERS_END, len(kernel.maps), MAP_BYTES)
        self.kernel, self._driver = kernel, driver
        self._module = _check(driver, driver.cuModuleLoadData(kernel.ptx.encode() + b"\0"))
        self._function = _check(driver, driver.cuModuleGetFunction(self._module, kernel.name.encode()))
        if kernel.shared_bytes:  # without it 48 KiB are allowed, shared memory of a fixed size included
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver, driver.cuFuncSetAttribute(self._function, attribute, kernel.shared_bytes))
        self._streams: dict[int, Any] = {}

    def takes(self, words: Sequence[int]) -> bool:
        return all(each.encode(each.words(words)) for each in self.kernel.maps)

    def _call(self, grid: Sequence[int], stream: int, parameters: ParameterBuffer) -> Callable[[], tuple[Any, ...]]:
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._streams[stream] = self._driver.CUstream(stream)
        kernel = self.kernel
        lists = (parameters.pointers, 0) if kernel.maps else (0, parameters.address)
        start: Callable[[], tuple[Any, ...]]
        if kernel.overlaps:
            config = self._overlapping(grid, handle)
            start = functools.partial(self._driver.cuLaunchKernelEx, config, self._function, *lists)
        else:
            start = functools.partial(
                self._driver.cuLaunchKernel,
                self._function, *grid, kernel.threads, 1, 1, kernel.shared_bytes, handle, *lists,
            )  # fmt: skip
        if not kernel.maps:
            return start
        as_bytes = memoryview(parameters.words).cast("B")[: 8 * kernel.words]
        return functools.partial(self._with_maps, start, parameters.words, as_bytes, bytearray())

    def _overlapping(self, grid: Sequence[int], stream: Any) -> Any:
        """Launch configuration of a kernel whose blocks may come while the launch before it still runs."""
        driver = self._driver
        attribute, value, config = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue(), driver.CUlaunchConfig()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.kernel.threads, 1, 1
        config.sharedMemBytes, config.hStream = self.kernel.shared_bytes, stream
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def _with_maps(
        self, start: Callable[[], tuple[Any, ...]], words: Any, as_bytes: memoryview, known: bytearray
    ) -> tuple[Any, ...]:
        """Launch with the tensor maps of the words; ``known`` holds the words that those at hand were made of."""
        if as_bytes.tobytes() != known:  # quicker than a comparison of views
            at = 8 * self.kernel.words
            for each in self.kernel.maps:
                tensor = each.words(words)
                encoded = each.encode(tensor)
                if encoded is None:
                    raise TargetError(f"kernel {self.kernel.name}: the copy engine does not take a tensor at {tensor}")
                struct.pack_into(f"={MAP_BYTES}s", words, at, encoded)
                at += MAP_BYTES
            known[:] = as_bytes
        return start()

    def _fail(self, status: Any) -> None:
        raise TargetError(f"kernel {self.kernel.name}: the CUDA driver reports {status.name}")


def versions() -> str:
    """Versions and settings of numba-cuda, and versions of the compiler that it calls."""
    packages = ("numba-cuda", "numba", "llvmlite", "nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-runtime")
    return ", ".join([*(f"{name} {installed_version(name) or 'absent'}" for name in packages), *code_settings()])


def variant_key(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> source.Key:
    """The key of a variant for ``cfg.arch``."""
    return source.variant_key("cuda", kernel, cfg, dtypes)


def compile_entry(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Entry:
    """What is kept of one variant for ``cfg.arch``; needs and errors as of `compile_kernel`."""
    made = compile_kernel(kernel, cfg, dtypes)
    return source.entry_of(variant_key(kernel, cfg, dtypes), versions(), made.launch, made.ptx.encode("ascii"))


class CudaTarget(GpuTarget):
    """Runs kernels on one NVIDIA GPU."""

    @functools.cached_property
    def parallelism(self) -> int:  # type: ignore[override]
        """Small blocks that run at the same time."""
        # deferred: optional dependency
        from cuda.bindings import driver

        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        result = driver.cuDeviceGetAttribute(attribute, self.device.info.index)
        return self.BLOCKS_PER_MULTIPROCESSOR * int(_check(driver, result))

    def compile_entry(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Entry:
        """Compile one variant; see `compile_kernel` of this module."""
        return compile_entry(kernel, cfg, dtypes)

    def load(self, entry: Entry) -> LoadedKernel:
        """Load a variant into the current device's context."""
        return LoadedKernel(CompiledKernel.of(entry))

    def versions(self) -> str:
        """Versions of the compiler; see `versions` of this module."""
        return versions()


def _check(driver: Any, result: tuple[Any, ...]) -> Any:
    """The value of a driver call, or an error that names what went wrong."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        kind = CodeRefusedError if status.name.removeprefix("CUDA_ERROR_") in _REFUSALS else TargetError
        raise kind(f"the CUDA driver reports {status.name}")
    return values[0] if values else None
