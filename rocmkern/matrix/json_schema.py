"""The JSON schema of a matrix file, which YAML editors use for completion and for marking mistakes.

``python -m rocmkern.matrix.json_schema`` writes ``matrix.schema.json`` beside this file; a test keeps it current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocmkern.matrix.schema import Matrix

SCHEMA_FILE = Path(__file__).with_name("matrix.schema.json")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema, made from the models of `rocmkern.matrix.schema`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Matrix.model_json_schema()}


def schema_text() -> str:
    """Return the committed form of the JSON schema."""
    return json.dumps(json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    print(f"wrote {SCHEMA_FILE}")
