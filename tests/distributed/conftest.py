import contextlib
import os
import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)


@contextlib.contextmanager
def _started(size):
    pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")
    from rocmkern.distributed import LocalRanks

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([FOLDER, str(Path(FOLDER).parents[1]), *([before] if before else [])])
    try:
        ranks = LocalRanks(size)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    with ranks:
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
