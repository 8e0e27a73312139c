"""What schemathesis also checks, loaded by it alone: the mesh refuses as it documents, and never breaks."""

from __future__ import annotations

import importlib
from typing import Any

DEFECT = 500
SERVER_ERRORS = 500


def refused_and_not_broken(_context: Any, response: Any, _case: Any) -> None:
    """A 5xx is a problem document that says what to do; 500 is a defect."""
    if response.status_code < SERVER_ERRORS:
        return
    assert response.status_code != DEFECT, "a defect"
    assert response.headers["content-type"][0].startswith("application/problem+json"), "no problem document"
    assert response.json()["retry"] in ("later", "refresh"), "a server error that no later try can mend"


schemathesis: Any = importlib.import_module("schemathesis")  # in an environment of its own: see `make openapi`
schemathesis.check(refused_and_not_broken)
