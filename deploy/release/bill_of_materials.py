"""The software bill of materials of a release: CycloneDX 1.6 as JSON (https://cyclonedx.org/docs/1.6/json/).

Rule 1: it says what is in the wheelhouse and nothing that changes from build to build: its serial number is made from
        its content, its time is that of the commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deploy.release.wheelhouse import Wheel

_NAMESPACE: Final = uuid.UUID("6f1a2f0e-7c5f-5d0b-9a58-2b7d3f7f1f10")  # of our serial numbers, drawn once


def bill_of_materials(product: Wheel, wheels: Sequence[Wheel], *, commit: str, time_s: int) -> str:
    """Return the document on `product`, whose parts are `wheels` (itself included), ended by a newline."""
    parts = [wheel for wheel in sorted(wheels) if wheel != product]
    known = {wheel.name: wheel for wheel in wheels}
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time_s, UTC).isoformat(),
            "component": _component(product, kind="application"),
            "properties": [{"name": "georelay:commit", "value": commit}],
        },
        "components": [_component(part, kind="library") for part in parts],
        "dependencies": [
            {"ref": _purl(wheel), "dependsOn": [_purl(known[name]) for name in wheel.needs if name in known]}
            for wheel in [product, *parts]
        ],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": f"urn:uuid:{serial}"}, indent=1) + "\n"


def _component(wheel: Wheel, *, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": kind,
        "bom-ref": _purl(wheel),
        "name": wheel.name,
        "version": wheel.version,
        "purl": _purl(wheel),
        "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
    }
    if wheel.licence:
        found["licenses"] = [{"license": {"name": wheel.licence}}]
    return found


def _purl(wheel: Wheel) -> str:
    return f"pkg:pypi/{wheel.name}@{wheel.version.replace('+', '%2B')}"
