"""Which brokers the mesh has, as a broker tells a gateway of its region. Pure.

A gateway is a member of its region's pool only: the keys of the pool of all brokers stay with brokers, and that pool
does not grow with gateways. So it asks a broker, by a query of Serf (serf-wire 2.7), for the brokers of all regions.

Rule 1: an answer is one page, JSON of at most PAGE_BYTES_MAX bytes, brokers by id; `next` is the question for the next
        page, 0 behind the last one.
Rule 2: a broker that has left is told of as such for as long as the pool remembers it. One that is not told of is
        unknown to who answers, perhaps because that one has just started: no reason to forget it.
Rule 3: everything in it is a hint; who answers at an address is checked by the connection to it.

    {"next": u32, "brokers": [{"id": 2001, "rg": "eu", "k": "10.2.0.11:9092", "g": ":9090", "a": ":9096",
                               "us": 35210, "left": 1}, ...]}
    k, g, a: Kafka, gRPC, admin; without a host: that of k. us: estimated round trip from who answers. left: 1 or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from georelay.fields import FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, region_of
from georelay.limits import REGION_NAME_CHARS_MAX
from mesh.gossip.view import MemberStatus, MemberView

DIRECTORY_QUERY: Final = "mesh-brokers"
BROKER_ROLE: Final = "broker"
GATEWAY_ROLE: Final = "gateway"
TAGS_VERSION: Final = "1"
GATEWAYS_MAX: Final = 16  # of one region, the first ones by name
DRAIN_TAG: Final = "dr"  # of a gateway: where clients of its region are to go; absent: they stay
PAGE_BYTES_MAX: Final = 860  # an answer may take 1024 bytes, with the longest name of a member and the rest around it
ROWS_PER_PAGE_MAX: Final = 64
ADDRESS_CHARS_MAX: Final = 260  # a host name has 253 at most
PORT_MAX: Final = 65_535
RTT_US_MAX: Final = 10_000_000  # longer ones are refused by the coordinates already
_ID_MAX: Final = REGION_NUMBER_MAX * 1000 + BROKERS_PER_REGION_MAX
_NUMBER: Final = re.compile(r"[0-9]{1,8}")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
_EVERYWHERE: Final = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - where one listens, not where one is
_REGION: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker of the mesh; addresses are "host:port". `rtt_s`: estimated, from who tells; None: unknown."""

    broker: BrokerId
    region: str
    kafka: str
    grpc: str
    admin: str
    rtt_s: float | None = None
    has_left: bool = False


def row_of(member: MemberView, *, mesh: str) -> BrokerRow | None:
    """Return what a member's tags say of a broker of this mesh; None: it is none, or does not say where it serves."""
    tags = member.tags
    if tags.get("cl") != mesh or tags.get("role") != BROKER_ROLE or _NUMBER.fullmatch(tags.get("id", "")) is None:
        return None
    addresses = [tags.get(name, "") for name in ("kafka", "grpc", "admin")]
    broker = BrokerId(int(tags["id"]))
    if not is_broker_id(broker) or _REGION.fullmatch(tags.get("rg", "")) is None or not all(map(is_address, addresses)):
        return None
    kafka, grpc, admin = addresses
    return BrokerRow(
        broker=broker,
        region=tags["rg"],
        kafka=kafka,
        grpc=grpc,
        admin=admin,
        rtt_s=member.rtt_s,
        has_left=member.status in (MemberStatus.LEFT, MemberStatus.LEAVING),
    )


def first_broker(members: Iterable[MemberView], *, mesh: str) -> str | None:
    """Return the name of the living broker with the lowest id: who has one question asks that one, as all others do."""
    alive = [member for member in members if member.status is MemberStatus.ALIVE]
    found = [(int(row.broker), member.name) for member in alive if (row := row_of(member, mesh=mesh))]
    return min(found, default=(0, None))[1]


def gateways_of(members: Iterable[MemberView], *, mesh: str, region: str) -> list[str]:
    """Return the names of living gateways of a region, GATEWAYS_MAX at most."""
    wanted = {"cl": mesh, "rg": region, "role": GATEWAY_ROLE}
    alive = [member for member in members if member.status is MemberStatus.ALIVE]
    return sorted(member.name for member in alive if wanted.items() <= dict(member.tags).items())[:GATEWAYS_MAX]


def is_broker_id(number: int) -> bool:
    """Return whether this is the mesh-wide id of a broker."""
    return 1 <= int(region_of(BrokerId(number))) <= REGION_NUMBER_MAX and 1 <= number % 1000 <= BROKERS_PER_REGION_MAX


def is_address(text: str) -> bool:
    """Return whether this is "host:port" of one host."""
    found = _ADDRESS.fullmatch(text) if len(text) <= ADDRESS_CHARS_MAX else None
    return found is not None and found[1] not in _EVERYWHERE and 0 < int(found[2]) <= PORT_MAX


def encode_page(rows: Iterable[BrokerRow], *, after: int) -> bytes:
    """Return the page of the brokers with an id above `after`; at least one row, if there is one that fits at all."""
    page: list[JsonObject] = []
    following = 0
    for row in sorted((row for row in rows if row.broker > after), key=lambda row: int(row.broker)):
        longer = [*page, _to_json(row)]
        # While it is not known whether this is the last row, room is kept for the longest `next`.
        if len(longer) > ROWS_PER_PAGE_MAX or len(_page(longer, _ID_MAX)) > PAGE_BYTES_MAX:
            if page:
                following = after
                break
            continue  # a broker with addresses that fill a page is not told of
        page, after = longer, int(row.broker)
    return _page(page, following)


def _page(rows: Sequence[JsonObject], following: int) -> bytes:
    return dump_object({"next": following, "brokers": list(rows)})


def _to_json(row: BrokerRow) -> JsonObject:
    host = row.kafka.rpartition(":")[0]
    fields: JsonObject = {"id": int(row.broker), "rg": row.region, "k": row.kafka}
    for name, address in (("g", row.grpc), ("a", row.admin)):
        fields[name] = address.removeprefix(host) if address.rpartition(":")[0] == host else address
    if row.rtt_s is not None:
        fields["us"] = min(RTT_US_MAX, max(0, round(row.rtt_s * 1e6)))
    if row.has_left:
        fields["left"] = 1
    return fields


def decode_page(raw: bytes) -> tuple[list[BrokerRow], int]:
    """Return the rows of a page and what to ask next, 0: nothing.

    Raises:
        FieldError: not such a page; the text says why.
    """
    fields = Fields(parse_object(raw, bytes_max=PAGE_BYTES_MAX), "the page")
    following = fields.integer("next", low=0, high=_ID_MAX)
    items = fields.items("brokers", count_max=ROWS_PER_PAGE_MAX)
    fields.done()
    return [_from_json(item) for item in items], following


def _from_json(item: object) -> BrokerRow:
    fields = Fields(item, "a broker")
    number = fields.integer("id", low=1001, high=_ID_MAX)
    if not is_broker_id(number):
        raise FieldError(f"{number} is not the id of a broker")
    region = fields.text("rg", chars_min=1, chars_max=REGION_NAME_CHARS_MAX, pattern=_REGION)
    kafka, grpc, admin = (fields.text(name, chars_max=ADDRESS_CHARS_MAX) for name in ("k", "g", "a"))
    host = kafka.rpartition(":")[0]
    grpc, admin = (f"{host}{text}" if text.startswith(":") else text for text in (grpc, admin))
    for text in (kafka, grpc, admin):
        if not is_address(text):
            raise FieldError(f"{text[:40]!r} is not host:port")
    rtt_us = fields.integer("us", low=0, high=RTT_US_MAX) if fields.has("us") else None
    has_left = fields.has("left") and fields.integer("left", low=0, high=1) == 1
    fields.done()
    return BrokerRow(
        broker=BrokerId(number),
        region=region,
        kafka=kafka,
        grpc=grpc,
        admin=admin,
        rtt_s=None if rtt_us is None else rtt_us / 1e6,
        has_left=has_left,
    )


def question(after: int) -> bytes:
    """Return the payload of the query for the page behind a broker id; 0: for the first one."""
    return str(after).encode()


def read_question(payload: bytes) -> int | None:
    """Return the broker id in a query's payload; None: it is none."""
    text = payload.decode("ascii", "replace") or "0"
    return int(text) if _NUMBER.fullmatch(text) else None


def answer(payload: bytes, members: Mapping[str, Sequence[MemberView]], *, mesh: str) -> bytes | None:
    """Return the page that is asked for; None: the question is none.

    Args:
        members: by pool, of who answers; what the pool named last says of a broker is what counts.
    """
    after = read_question(payload)
    if after is None:
        return None
    rows: dict[BrokerId, BrokerRow] = {}
    for pool in members.values():
        for member in pool:
            row = row_of(member, mesh=mesh)
            if row is not None and not (row.has_left and row.broker in rows):
                rows[row.broker] = row
    return encode_page(rows.values(), after=after)
