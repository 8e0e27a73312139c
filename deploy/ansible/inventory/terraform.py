#!/usr/bin/env python3
"""Ansible's inventory out of Terraform's `outputs.inventory`: every instance by its name, broker-1.eu-west-1.

Reads the JSON of `terraform output -json` from the file that GEORELAY_TF_OUTPUT names, else asks terraform in
deploy/terraform. Needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

TERRAFORM: Final = Path(__file__).resolve().parents[2] / "terraform"
USER: Final = "admin"  # of Debian's images
VOLUME_LINK: Final = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_"  # device letters change on Nitro


def main() -> int:
    """Print the inventory; 1 with one line on standard error when there is none."""
    try:
        print(json.dumps(inventory(read_outputs(os.environ.get("GEORELAY_TF_OUTPUT", ""))), indent=1))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        print(f"inventory: {str(said).strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    return 0


def read_outputs(file: str) -> dict[str, Any]:
    """Return by name what `terraform output -json` says."""
    if file:
        text = Path(file).read_text(encoding="utf-8")
    else:
        command = ["terraform", f"-chdir={TERRAFORM}", "output", "-json"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    outputs = json.loads(text)
    if not isinstance(outputs, dict) or "inventory" not in outputs:
        raise ValueError("Terraform's state has no output named inventory: run terraform apply first")
    found = {name: row.get("value", row) if isinstance(row, dict) else row for name, row in outputs.items()}
    if not isinstance(found["inventory"], dict) or not found["inventory"]:
        raise ValueError("Terraform's output named inventory has no regions")
    return found


def inventory(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return what Ansible wants of `--list`: groups of hosts, and the variables of each."""
    hostvars: dict[str, dict[str, Any]] = {}
    members: dict[str, list[str]] = {"brokers": [], "gateways": []}
    secrets = dict(outputs.get("secrets", {}))
    for region, row in outputs["inventory"].items():
        secrets.update({f"{name}/{region}": arn for name, arn in row.get("secrets", {}).items()})
        for role, names in members.items():
            for name, host in row.get(role, {}).items():
                full = f"{name}.{region}"
                names.append(full)
                known = {"ansible_host": host["ip"], "georelay_region_number": row["number"]}
                hostvars[full] = {**known, **_disk(host), **_names(role, row)}
    hostvars["localhost"] = {"ansible_connection": "local"}
    groups = {role: {"hosts": names} for role, names in members.items()}
    known = {"georelay_mesh_id": outputs.get("mesh"), "georelay_secrets": secrets}
    shared = {"ansible_user": USER, **{name: value for name, value in known.items() if value}}
    everybody = {"hosts": ["localhost"], "children": sorted(groups), "vars": shared}
    return {"_meta": {"hostvars": hostvars}, "mesh": everybody, **groups}


def _disk(host: dict[str, Any]) -> dict[str, str]:
    volume = str(host.get("volume") or "").replace("-", "")
    return {"georelay_data_device": f"{VOLUME_LINK}{volume}"} if volume else {}


def _names(role: str, region: dict[str, Any]) -> dict[str, list[str]]:
    names = [str(region[key]) for key in ("lb", "name") if region.get(key)]
    return {"georelay_extra_names": names} if role == "gateways" and names else {}


if __name__ == "__main__":
    sys.exit(main())
