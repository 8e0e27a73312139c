"""What has to be there before the lines of a page can be run against the shared mesh. Pure.

1. `here` replaces what a page prints by what it is here: in braces stand the names of the mesh's addresses, and
   behind @ a file in the page's folder.
2. `before` runs shell before the lines of the page that begin so, `after` behind all. What it exports stays for the
   page. `said` is what the line before said.
3. Each page has its own topic `orders` and queue `bills`, so that no page sees what another one left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_EVENTS: Final = "".join(f'{{"key": "customer-{number}", "state": "placed"}}\\n' for number in range(3))


@dataclass(frozen=True, slots=True)
class Page:
    """One document with lines to run: what is replaced in them, and what runs before which."""

    name: str
    here: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    after: str = ""
    has_own_names: bool = True


_PORTS_OF_README: Final = {
    ".venv/bin/": "",
    "127.0.0.1:21045": "{http}",
    "127.0.0.1:21046": "{kafka}",
    "127.0.0.1:21030": "{kafka_ap}",
    "curl -N": "! curl -sN --max-time 2",  # who listens to events goes on until it is stopped
}

_ANY_VERDICT: Final = {"georelay-sla report": "georelay-sla report --fail-on never"}

PAGES: Final = (
    Page(
        "README.md",
        here={**_PORTS_OF_README, "--from earliest --region ap": "--from earliest --region ap --max 3"},
        before={".venv/bin/georelay publish": f"printf '{_EVENTS}' > events.ndjson"},
        has_own_names=False,
    ),
    Page("docs/protocol/http-and-grpc.md", here=_PORTS_OF_README, has_own_names=False),
    Page("docs/operate/audit.md"),
    Page("docs/operate/brokers-and-topics.md"),
    Page(
        "docs/operate/drills.md",
        here={
            "georelay-endpoints.json": "{endpoints}",
            "--data georelay-data": "--data {data}",
            " d/run": " {data}/run",
        },
        after="until curl -sf http://{admin_us}/readyz; do sleep 0.1; done",  # it was killed, and other pages ask it
    ),
    Page(
        "docs/operate/durability.md",
        here={"$G": "http://{http}", "$A": "{admin_us}"},
        before={
            "georelay topics create": "export G=http://{http} K={kafka_us}",
            'curl -s -w \' %{http_code}\\n\' -d \'{"value": "b"}': "kill -STOP $(cat {data}/run/ap-1.pid)",
            'curl -s "$G/v1/topics/payments/resolve?partition=0&epoch=1&offset=1&durability=geo:3&wait_ms': (
                "kill -CONT $(cat {data}/run/ap-1.pid)"
            ),
        },
    ),
    Page(
        "docs/operate/gossip.md",
        here={"27362a1a1623": "@new", "a3a1ff9d7e27": "@old"},
        before={
            "georelay keys generate": "awk 'NR == 2 {{print $1}}' said > old",
            "georelay keys use": "awk '{{print substr($2, 1, 12)}}' said > new",
        },
    ),
    Page(
        "docs/operate/groups.md",
        before={
            "georelay groups describe billing": (
                "georelay route pin 127.0.0.0/24 us; "  # a group is of one region: that of its consumer here
                "georelay topics create orders --partitions 6; echo a | kcat -P -b {kafka_us} -t orders; "
                "kcat -u -b {kafka_us} -X auto.offset.reset=earliest -G billing orders > read 2>&1 & echo $! > reader; "
                "until grep -q ^a read; do sleep 0.1; done"
            ),
            "georelay groups reset-offsets billing --topic orders --shift-by": "kill $(cat reader); sleep 1",
        },
        after="georelay route unpin 127.0.0.0/24",
    ),
    Page("docs/operate/orphan-branches.md"),
    Page(
        "docs/operate/queues.md",
        here={"127.0.0.1:21045": "{http}"},
        before={
            # The regions of one machine are equally near: what a page makes in one it would look for in another.
            "georelay topics create": "export GEORELAY_GATEWAY=http://{admin_us}",
            "georelay queues list": ("for place in 0 1 2; do echo a | kcat -P -b {kafka_us} -t orders -p $place; done"),
            "georelay bindings add eu-bills": "georelay topics create audit",
        },
    ),
    Page("docs/operate/start-and-stop.md"),
    Page(
        "docs/operate/tls.md",
        here={
            "--base-port 0": "--base-port 0 > up 2>&1 & echo $! > pid; touch up; tail -f up | sed '/ is ready/q'",
            "127.0.0.1:23005": "@http",
        },
        before={"georelay topics list": "jq -jr '.gateway.http[0]' e.json > http"},
        after="kill $(cat pid); while kill -0 $(cat pid) 2> no; do sleep 0.1; done",
    ),
    Page("docs/operate/traces.md", here={"ep.json": "{endpoints}"}),
    Page("docs/protocol/link-frames.md"),
    Page("docs/sla/generate.md", here=_ANY_VERDICT),
    Page("docs/sla/inputs.md", before={"python -c": "georelay-sla gen --out . --seconds 120"}),
    Page(
        "docs/sla/live.md",
        here={"localhost:9644": "{admin_eu}", "54b1c987107e": "@run"},
        before={"curl -s 'localhost:9644/v1/traces/probe/end": "jq -jr .kinds.probe.oldest said | cut -d/ -f1 > run"},
    ),
    Page("docs/sla/report.md", here={"georelay-data": "{data}", **_ANY_VERDICT}),
    Page(
        "docs/sla/targets.md",
        here={".venv/bin/": "", **_ANY_VERDICT},
        before={
            ".venv/bin/georelay-sla report": (
                "sed -n '/^```toml/,/^```/p' {root}/docs/sla/targets.md | sed '1d;$d' > own.toml"
            )
        },
    ),
    Page(
        "docs/operate/homes.md",
        here={"127.0.0.1:26404": "{http}", "660d494d429a8.1.1.1": "@lease"},
        before={
            "georelay home show orders": (
                "georelay topics create orders --partitions 3 --home us; "
                "georelay topics create work; georelay queues create jobs --topic work --region us"
            ),
            "curl -X PATCH": "georelay topics create pay",
            "georelay queues receive": (
                "georelay home move --groups-of us --to us; "
                "for n in 0 1 2 3; do georelay publish work - <<< '{{\"n\": 1}}'; done"
            ),
            "georelay home move --groups-of": "awk '$1 ~ /[.][0-9]+$/ {{print $1; exit}}' said > lease",
        },
    ),
    Page(
        "docs/operate/security.md",
        here={"/etc/georelay": "."},
        before={
            "georelay users add alice < password-of-alice": (
                "echo correct-horse-7 > password-of-alice; "
                "georelay acls add --principal User:alice --operation all --resource cluster"
            ),
            "georelay users list": "export GEORELAY_USER=alice:correct-horse-7",
            "georelay users disable bob": "georelay users add bob < password-of-alice",
        },
    ),
)
