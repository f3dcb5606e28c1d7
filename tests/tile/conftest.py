"""What the tests of the tile language share: architectures to run on, and a launch."""

from __future__ import annotations

import itertools

import pytest

from rocmkern.targets import current_target, using
from rocmkern.targets.cpu import ARCHITECTURES, host_architecture

#: What this host can run. The widest comes first and runs every test, the others have a share of them each.
CPU_ARCHITECTURES = ARCHITECTURES[ARCHITECTURES.index(host_architecture()) :]


def variants(widest, others):
    """(architecture, m) pairs: python and the widest for ``widest``, narrower ones for ``others`` in turn."""
    pairs = [*itertools.product(["python", CPU_ARCHITECTURES[0]], widest)]
    narrower = CPU_ARCHITECTURES[1:]
    for i, arch in enumerate(narrower):
        pairs += itertools.product([arch], others[i % len(others) :: len(narrower)] if others else ())
    return pairs


def pytest_generate_tests(metafunc):
    """``@pytest.mark.tiles(widest=..., others=...)`` gives a test its architectures and row counts."""
    marker = metafunc.definition.get_closest_marker("tiles")
    if marker:
        pairs = variants(**marker.kwargs)
        metafunc.parametrize(("arch", "m"), pairs, ids=[f"{arch}-m{m}" for arch, m in pairs])
    elif "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", ["python", CPU_ARCHITECTURES[0]])


def pytest_configure(config):
    config.addinivalue_line("markers", "tiles(widest, others): row counts of the tiles, per architecture")


@pytest.fixture
def launch():
    """``launch(kernel, cfg, grid, *arguments)`` on the target that ``cfg.arch`` belongs to."""

    def run(kernel, cfg, grid, *arguments):
        with using("python" if cfg.arch == "python" else "cpu"):
            current_target().launch(kernel, cfg, grid, arguments)

    return run
