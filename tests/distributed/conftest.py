import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@contextlib.contextmanager
def _started(size):
    pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")
    from rocmkern.distributed import LocalRanks

    with LocalRanks(size) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def ranks():
    """Four processes, connected by gloo, for all tests."""
    with _started(4) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def start_ranks():
    """Processes of a test's own, which it may end."""
    return _started
