"""Part of `make openapi`: the AsyncAPI document of the gateway against AsyncAPI's own schema.

python -m tests.openapi.asyncapi SCHEMA
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema

from gateway.rest.asyncapi_core import asyncapi


def run(schema: Path) -> int:
    """Print what is wrong, a line each; return 1 where anything is."""
    document: Any = json.loads(json.dumps(asyncapi()))
    judge = jsonschema.Draft7Validator(json.loads(schema.read_text()))
    errors = [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in judge.iter_errors(document)]
    print("\n".join(errors) if errors else f"/v1/asyncapi.json is valid: AsyncAPI {document['asyncapi']}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
