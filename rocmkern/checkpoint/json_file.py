"""JSON files as untrusted input: small, an object, no key twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocmkern.checkpoint.data_file import read_text
from rocmkern.checkpoint.names import shown
from rocmkern.runtime.errors import CheckpointError


def read_object(path: Path, most: int) -> dict[str, Any]:
    """The object in a file of at most so many bytes.

    Raises
    ------
    CheckpointError
        The file cannot be read, is no JSON, or is no object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise CheckpointError(f"{path} has the key {shown(key)} twice")
            found[key] = value
        return found

    try:
        found = json.loads(read_text(path, most), object_pairs_hook=unique)
    except RecursionError:
        raise CheckpointError(f"{path} is nested too deeply") from None
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return found
