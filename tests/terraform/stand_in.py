"""moto as the API of AWS, in a process of its own: prints its port, serves until standard input ends.

What it needs to answer as AWS does: an image of Debian, what rules say of themselves, health checks of alarms.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

DEBIAN = {
    "ami_id": "ami-0123456789abcdef0",
    "name": "debian-12-amd64-20260101-1980",
    "owner_id": "136693071363",
    "public": True,
    "virtualization_type": "hvm",
    "architecture": "x86_64",
    "root_device_type": "ebs",
    "root_device_name": "/dev/xvda",
    "creation_date": "2026-01-01T00:00:00.000Z",
}


def keep_what_is_said() -> None:
    """Have moto keep what it drops: what rules say, groups of hosts, health checks as they came."""
    from moto.ec2.models.instances import Instance
    from moto.ec2.models.security_groups import SecurityGroupRule
    from moto.route53.models import HealthCheck
    from moto.route53.responses import Route53

    first, create, wire = SecurityGroupRule.__init__, Route53.create_health_check, Instance.prep_nics
    signature = inspect.signature(first)

    def remember(*words: Any, **named: Any) -> None:
        first(*words, **named)
        given = signature.bind(*words, **named).arguments
        whom = given.get("ip_range") or given.get("source_group") or given.get("prefix_list_id") or {}
        words[0].description = whom.get("Description")

    def remember_check(answer: Any) -> Any:
        made = create(answer)
        made.result["HealthCheck"].asked = answer._get_param("HealthCheckConfig")
        return made

    def wire_up(host: Any, *words: Any, **named: Any) -> None:
        wire(host, *words, **named)
        host.security_groups = host.security_groups or list(host.nics[0].group_set)

    Instance.prep_nics = wire_up
    SecurityGroupRule.description = None
    SecurityGroupRule.__init__ = remember
    Route53.create_health_check = remember_check
    HealthCheck.health_check_config = property(lambda check: check.asked)


def main() -> None:
    """Serve until nobody needs it any more."""
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.json"
        images.write_text(json.dumps([DEBIAN]))
        os.environ["MOTO_AMIS_PATH"] = str(images)  # read when moto is imported
        from moto.server import ThreadedMotoServer

        keep_what_is_said()
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        _, port = server.get_host_and_port()
        print(json.dumps({"port": port}), flush=True)
        sys.stdin.read()
        server.stop()


if __name__ == "__main__":
    main()
