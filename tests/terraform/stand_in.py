"""moto as the API of AWS, in a process of its own: prints its port, serves until standard input ends.

A line of its input, `down REGION`, has that region refuse everything until `up REGION`; each is answered by a line.

What it needs to answer as AWS does: an image of Debian, what rules say of themselves, health checks of alarms, and the
address of a host that is gone, which another one may have. What moto fails at is refused at once with its cause: of an
error of the server the provider would ask 25 times. It answers one request at a time: moto walks dictionaries that
another request changes, and says so (RuntimeError) on a busy machine.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

SCOPE = re.compile(r"Credential=[^/]+/[^/]+/([^/]+)/")
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
    end = Instance.terminate
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

    def give_back(host: Any) -> Any:
        subnet = host.ec2_backend.get_subnet(host.subnet_id)
        for address in host._private_ips:
            subnet.del_subnet_ip(address)
        host._private_ips.clear()
        return end(host)

    Instance.prep_nics = wire_up
    Instance.terminate = give_back
    SecurityGroupRule.description = None
    SecurityGroupRule.__init__ = remember
    Route53.create_health_check = remember_check
    HealthCheck.health_check_config = property(lambda check: check.asked)


def refuse_what_fails(down: set[str]) -> None:
    """Have what moto fails at, and all of a region that is down, answered as a request that AWS refuses."""
    from flask import Response, request
    from moto.core.utils import convert_to_flask_response
    from werkzeug.exceptions import HTTPException

    answer = convert_to_flask_response.__call__
    alone = threading.Lock()

    def answer_or_refuse(view: Any, *words: Any, **named: Any) -> Any:
        try:
            scope = SCOPE.search(request.headers.get("Authorization", ""))
            if scope is not None and scope[1] in down:
                raise ConnectionError(f"{scope[1]} is down")
            with alone:
                return answer(view, *words, **named)
        except HTTPException:
            raise  # a refusal of moto's own
        except Exception as error:
            text = escape(f"moto fails: {error!r}")
            body = f"<Response><Errors><Error><Code>StandIn</Code><Message>{text}</Message></Error></Errors></Response>"
            return Response(body, status=400, mimetype="text/xml")

    convert_to_flask_response.__call__ = answer_or_refuse


def main() -> None:
    """Serve until nobody needs it any more."""
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.json"
        images.write_text(json.dumps([DEBIAN]))
        os.environ["MOTO_AMIS_PATH"] = str(images)  # read when moto is imported
        from moto.server import ThreadedMotoServer

        keep_what_is_said()
        down: set[str] = set()
        refuse_what_fails(down)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        _, port = server.get_host_and_port()
        print(json.dumps({"port": port}), flush=True)
        for line in sys.stdin:
            word, region = line.split()
            (down.add if word == "down" else down.discard)(region)
            print(json.dumps({"down": sorted(down)}), flush=True)
        server.stop()


if __name__ == "__main__":
    main()
