"""What each request of the HTTP API means: the part of the OpenAPI document that the routes do not say themselves.

Rule: one row per route of gateway.rest.application; a test compares the two. Texts are those of
docs/protocol/http-and-grpc.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request.

    Args:
        summary: what it does, or answers. query: names of parameters (QUERY has what they are).
        body: name of a schema, "" for none; it is required unless `body_optional`.
        status: of the answer when it went well. answer: name of a schema, "" for an answer without a body.
        media: of the answer.
    """

    summary: str
    query: tuple[str, ...] = ()
    body: str = ""
    body_optional: bool = False
    status: int = 200
    answer: str = "Object"
    media: str = "application/json"


def _text(about: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, **more}


def _whole(about: str, low: int = 0, high: int = 2**63 - 1, **more: Any) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "description": about, **more}


def _flag(about: str) -> Schema:
    return {"type": "string", "enum": ["true", "false"], "description": about}


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


def _list(of: Schema, most: int) -> Schema:
    return {"type": "array", "items": of, "maxItems": most}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


QUERY: Final[Mapping[str, Schema]] = {
    "region": _text("the region that is asked, or meant; without it the nearest ready one", maxLength=40),
    "topic": _text("only this topic", maxLength=249),
    "after": _text("what comes behind this: `next` of the page before, or `version` of the overview"),
    "limit": _whole("of a page: streams, 64 at most; audit events, 200 at most", 1, 200),
    "event": _text("only audit events of this name", maxLength=32),
    "before": _text("older ones: `next` of the page before", maxLength=32),
    "replicas": _flag("every replica, not only each region's leader"),
    "partition": _whole("number of the partition", 0, 9_999),
    "origin": _whole("number of the origin region, 0 for a topic with one home", 0, 32_767),
    "at": _whole("number of the region that recomputes", 1, 32_767),
    "from": _text("where to begin"),
    "until": _text("where to end"),
    "digest": _text("digest at `from`"),
    "offset": _text("a number, `earliest` or `latest`"),
    "max": _whole("records at most", 1, 10_000),
    "wait_ms": _whole("how long to wait for records", 0, 30_000),
    "format": _text("records as JSON, or stored batches", enum=["json", "batches"]),
    "states": _text("only groups in these states, by comma"),
    "lag": _flag("whether lags are told"),
    "consumer": _text("who receives", maxLength=255),
    "session_timeout_ms": _whole("after so long without a request its leases end", 1),
    "pool": _text("pool of members", enum=["lan", "wan"]),
    "to": _text("a member of the pool"),
    "force": _flag("even where other regions lack records of it"),
    "durability": _text("region, geo:N, geo:majority or geo:all"),
    "deadline_ms": _whole("how long to wait for that level", 1, 300_000),
    "epoch": _whole("home epoch of the record", 1),
    "partitions": _text("numbers of partitions, by comma"),
    "read_only": _flag("whether nothing is published over it"),
    "client": _text("name of a client", maxLength=128),
    "address": _text("an address of a client"),
    "intent": _text("what the client means to do", enum=["read", "publish"]),
    "kinds": _text("kinds of traces, by comma"),
    "rows": _whole("rows at most", 1, 100_000),
    "bytes": _whole("bytes at most", 1),
}

_HEADERS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_OPTIONAL: Final[Schema] = {"type": ["string", "null"]}
_NAME: Final = _text("name of a topic", maxLength=249)
_REGION: Final = _text("name of a region", maxLength=40)
_PARTITIONS: Final = _list(_whole("number of a partition", 0, 9_999), 10_000)
_TOPIC_SETTINGS: Final[Mapping[str, Schema]] = {
    "retention_ms": _whole("how long records are kept; -1: for ever", -1),
    "retention_bytes": _whole("how much of a partition is kept; -1: everything", -1),
    "segment_bytes": _whole("size of a segment", 1),
    "settings": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Problem": {
        "type": "object",
        "description": "RFC 9457; docs/errors.md has every code",
        "required": ["type", "title", "status", "detail", "code", "outcome", "retry"],
        "properties": {
            "type": _text("urn:georelay:error:CODE"),
            "title": _text("the code in words"),
            "status": _whole("the HTTP status", 400, 599),
            "detail": _text("what is wrong, and what to do"),
            "code": _text("name of the error"),
            "outcome": _text("what became of the records of a publish", enum=["not_stored", "unknown", "pending"]),
            "retry": _text("what a caller may do next", enum=["never", "later", "refresh", "sign_in"]),
        },
    },
    "Object": {"type": "object"},
    "Record": _object(
        key={"type": ["string", "null"]},
        key_b64=_text("the key's bytes, in base64", contentEncoding="base64"),
        value={"type": ["string", "null"]},
        value_b64=_text("the value's bytes, in base64", contentEncoding="base64"),
        headers=_HEADERS,
        headers_b64=_HEADERS,
        partition=_whole("else by murmur2 of the key", 0, 9_999),
        timestamp_ms=_whole("else the broker's clock"),
    ),
    "StoredRecord": {
        "type": "object",
        "required": ["offset", "timestamp_ms", "headers"],
        "properties": {
            **dict.fromkeys(("key", "value"), _OPTIONAL),
            **{name: _text("what is not UTF-8, in base64") for name in ("key_b64", "value_b64")},
            **{name: {"type": "object", "additionalProperties": _OPTIONAL} for name in ("headers", "headers_b64")},
            **{name: {"type": "integer"} for name in ("partition", "offset", "timestamp_ms")},
        },
    },
    "Publish": {"oneOf": [_ref("Record"), _list(_ref("Record"), 10_000)]},
    "Published": {
        "type": "object",
        "required": ["records"],
        "properties": {
            "records": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["partition", "offset", "epoch"],
                    "properties": {name: {"type": "integer"} for name in ("partition", "offset", "epoch")},
                },
            }
        },
    },
    "Records": {
        "type": "object",
        "required": ["topic", "partition", "records", "next_offset", "high_watermark", "log_start"],
        "properties": {
            "topic": {"type": "string"},
            "records": {"type": "array", "items": _ref("StoredRecord")},
            **{name: {"type": "integer"} for name in ("partition", "next_offset", "high_watermark", "log_start")},
        },
    },
    "Topic": {
        "type": "object",
        "required": ["name", "topic_id", "partitions", "replication_factor", "homes", "home"],
        "properties": {
            **{name: {"type": "string"} for name in ("name", "topic_id", "homes")},
            **{name: {"type": "integer"} for name in ("partitions", "replication_factor", "home")},
        },
    },
    "Topics": {
        "type": "object",
        "required": ["topics"],
        "properties": {"topics": {"type": "array", "items": _ref("Topic")}},
    },
    "NewTopic": _object(
        ("name",),
        name=_NAME,
        partitions=_whole("how many", 1, 10_000),
        replication_factor=_whole("replicas in each region", 1, 32_767),
        homes=_text("one region orders each partition, or every region its own", enum=["one", "every"]),
        home=_REGION,
        **_TOPIC_SETTINGS,
    ),
    "TopicChange": _object(
        **{name: {**found, "type": [found["type"], "null"]} for name, found in _TOPIC_SETTINGS.items()}
    ),
    "Reassignment": _object(
        ("replicas",), partition=_whole("else all", 0, 9_999), replicas=_list(_whole("id of a broker", 1), 100)
    ),
    "DeleteRecords": _object(
        ("partition", "before"),
        partition=_whole("number of the partition", 0, 9_999),
        before={"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "enum": ["latest"]}]},
    ),
    "Offset": _object(("offset",), offset=_whole("where to go on")),
    "Dropped": _object(),
    "GroupReset": _object(
        ("topic", "to"),
        topic=_NAME,
        partitions=_PARTITIONS,
        to=_text("where", enum=["earliest", "latest", "offset", "timestamp", "by"]),
        offset=_whole("with to=offset"),
        timestamp_ms=_whole("with to=timestamp"),
        by=_whole("with to=by", -(2**63)),
        execute={"type": "boolean"},
        create={"type": "boolean"},
    ),
    "Move": {
        "oneOf": [
            _object(("to", "topic"), to=_REGION, topic=_NAME, partitions=_PARTITIONS),
            _object(("to", "from"), **{"to": _REGION, "from": _REGION}),
            _object(("to", "groups_of"), to=_REGION, groups_of=_REGION),
        ]
    },
    "Failover": {
        "oneOf": [
            _object(("region",), region=_REGION, accept_loss={"type": "boolean"}),
            _object(("topic",), topic=_NAME, partitions=_PARTITIONS, accept_loss={"type": "boolean"}),
        ]
    },
    "MoveBegun": {
        "type": "object",
        "required": ["move_id"],
        "properties": {"move_id": {"type": "string"}, "streams": {"type": "integer"}},
    },
    "NewRegion": _object(
        ("name", "number"),
        name=_text("name of the region", pattern="^[a-z0-9-]{1,20}$"),
        number=_whole("never used before", 1, 32_767),
        seeds=_list(_text("id@host:port"), 100),
        witness={"type": "boolean"},
    ),
    "Confirm": _object(("confirm",), confirm=_text("the mesh id: a person's word that the majority is gone for good")),
    "NewBroker": _object(peers=_text("host:port of its peer listener")),
    "NewUser": _object(
        ("name", "password"),
        name=_text("name of the user"),
        password=_text("its password", format="password"),
        expires_s=_whole("seconds since 1970"),
    ),
    "UserChange": _object(
        password=_text("a new one", format="password"),
        enabled={"type": "boolean"},
        expires_s={"type": ["integer", "null"], "minimum": 0},
    ),
    "NewToken": _object(("name",), name=_text("name of the token"), days=_whole("how long it is good", 1)),
    "AclEntry": _object(
        ("resource", "name", "principal", "operation", "permission"),
        resource=_text("kind of the resource"),
        name=_text("its name"),
        pattern=_text("how the name is meant", enum=["literal", "prefixed"]),
        principal=_text("User:NAME"),
        host=_text("an address, or *"),
        operation=_text("what is done"),
        permission=_text("allow or deny", enum=["allow", "deny"]),
    ),
    "AclEntries": _object(("entries",), entries=_list(_ref("AclEntry"), 1_000)),
    "Quota": _object(
        ("principal",),
        principal=_text("User:NAME"),
        produce_bytes_per_s=_whole("0 takes the limit away"),
        fetch_bytes_per_s=_whole("0 takes the limit away"),
        request_share_ppm=_whole("0 takes the limit away"),
    ),
    "Resolve": _object(
        client=_text("name of the client", maxLength=128),
        region=_text("where it is", maxLength=40),
        topic=_text("what it means to use", maxLength=249),
        intent=_text("what it means to do", enum=["read", "publish"]),
        observed=_list(
            _object(
                ("region", "rtt_us", "samples"),
                region=_REGION,
                rtt_us=_whole("round trip", 1, 10_000_000),
                samples=_whole("how many", 1, 1_000),
                age_s=_whole("how old", 0, 86_400),
            ),
            64,
        ),
    ),
    "Rule": _object(
        ("subject", "value"),
        subject=_text("a client or prefix; a region; switching", minLength=1),
        value=_text("the region; clients; frozen; empty takes it back", maxLength=40),
    ),
    "Session": _object(
        user=_text("name of a user"),
        password=_text("its password", format="password"),
        token=_text("instead of both"),
        read_only={"type": "boolean"},
    ),
}

OPERATIONS: Final[Mapping[str, Operation]] = {
    "GET /healthz": Operation(summary="whether the process answers", media="text/plain"),
    "GET /readyz": Operation(summary="whether a region is ready", media="text/plain"),
    "GET /metrics": Operation(summary="metrics of this gateway", media="text/plain"),
    "GET /v1/asyncapi.json": Operation(summary="what is said over /v1/socket, as AsyncAPI 3.0"),
    "GET /v1/openapi.json": Operation(summary="this document"),
    "GET /v1/resolve": Operation(
        summary="regions, the best one first: for this gateway, or for a client",
        query=("region", "client", "topic", "intent"),
    ),
    "POST /v1/resolve": Operation(summary="the same, with what the client measured", body="Resolve"),
    "GET /v1/routes": Operation(summary="what operators decided about clients"),
    "GET /v1/routes/explain": Operation(
        summary="every input and score of a client, and why not another region", query=("client", "address", "topic")
    ),
    "POST /v1/routes/{kind}": Operation(summary="pin, drain or freeze", body="Rule"),
    "GET /v1/status": Operation(summary="what every broker reports"),
    "GET /v1/overview": Operation(summary="the mesh at one look", query=("after",)),
    "GET /v1/live": Operation(summary="the live view of latency"),
    "GET /v1/traces": Operation(summary="positions of this gateway's traces", query=("kinds",)),
    "GET /v1/traces/{kind}/end": Operation(
        summary="how far so many rows reach",
        query=("from", "until", "rows"),
    ),
    "GET /v1/traces/{kind}": Operation(
        summary="a page of trace rows",
        query=("from", "until", "rows", "bytes"),
        media="application/vnd.apache.arrow.stream",
    ),
    "GET /console": Operation(summary="to the console", status=302, answer=""),
    "GET /console/": Operation(summary="the console, for browsers", media="text/html"),
    "GET /console/{file}": Operation(summary="a file of the console", media="text/html"),
    "GET /console/session": Operation(summary="who is signed in at the console"),
    "POST /console/session": Operation(summary="begin a session", body="Session"),
    "DELETE /console/session": Operation(summary="end the session", status=204, answer=""),
    "GET /v1/topics": Operation(summary="topics", query=("region",), answer="Topics"),
    "POST /v1/topics": Operation(
        summary="create a topic", query=("region",), body="NewTopic", status=201, answer="Topic"
    ),
    "GET /v1/topics/{topic}": Operation(summary="a topic and its partitions", query=("region",), answer="Topic"),
    "DELETE /v1/topics/{topic}": Operation(
        summary="delete a topic and its records in every region", query=("region",), status=204, answer=""
    ),
    "PATCH /v1/topics/{topic}": Operation(
        summary="change settings; null is the default", query=("region",), body="TopicChange", answer="Topic"
    ),
    "POST /v1/topics/{topic}/reassign": Operation(
        summary="move replicas inside the region", query=("region",), body="Reassignment", status=202, answer="Topic"
    ),
    "POST /v1/topics/{topic}/delete-records": Operation(
        summary="delete records below an offset in every region", query=("region",), body="DeleteRecords"
    ),
    "GET /v1/topics/{topic}/records": Operation(
        summary="committed records of one partition",
        query=("region", "partition", "offset", "max", "wait_ms"),
        answer="Records",
    ),
    "POST /v1/topics/{topic}/records": Operation(
        summary="publish one record, or several",
        query=("region", "durability", "deadline_ms"),
        body="Publish",
        answer="Published",
    ),
    "GET /v1/topics/{topic}/resolve": Operation(
        summary="which regions have a record",
        query=("region", "partition", "epoch", "offset", "durability", "wait_ms"),
    ),
    "POST /v1/topics/{topic}/consumers/{consumer}": Operation(
        summary="keep a position for each partition that has none", query=("region",), body="Object"
    ),
    "GET /v1/topics/{topic}/events": Operation(
        summary="records as they come, as server-sent events; Last-Event-ID goes on behind an event",
        query=("region", "partitions", "offset"),
        media="text/event-stream",
    ),
    "GET /v1/socket": Operation(
        summary="a WebSocket, see /v1/asyncapi.json: 101 where the request is a handshake",
        query=("region", "read_only"),
        status=101,
        answer="",
    ),
    "GET /v1/topics/{topic}/consumers/{consumer}/records": Operation(
        summary="what a named consumer has not acknowledged",
        query=("region", "max", "wait_ms", "partitions"),
    ),
    "GET /v1/topics/{topic}/consumers/{consumer}/events": Operation(
        summary="the same as server-sent events",
        query=("region", "partitions"),
        media="text/event-stream",
    ),
    "POST /v1/topics/{topic}/consumers/{consumer}/acknowledge": Operation(
        summary="go on behind these positions", query=("region",), body="Object"
    ),
    "GET /v1/orphans": Operation(
        summary="orphan branches of one region",
        query=("region", "topic"),
    ),
    "GET /v1/orphans/{topic}/{partition}/{epoch}": Operation(
        summary="a piece of a branch",
        query=("region", "offset", "format"),
    ),
    "DELETE /v1/orphans/{topic}/{partition}/{epoch}": Operation(
        summary="let a branch, and older ones, be deleted", query=("region",)
    ),
    "POST /v1/orphans/{topic}/{partition}/{epoch}/republish": Operation(
        summary="publish a piece again as new records", query=("region",), body="Offset"
    ),
    "GET /v1/audit": Operation(
        summary="digest chains of all regions compared",
        query=("region", "topic", "after", "limit", "replicas"),
    ),
    "GET /v1/audit/deep": Operation(
        summary="one region recomputes a piece of its chain",
        query=("region", "topic", "partition", "origin", "at", "from", "digest"),
    ),
    "GET /v1/audit/events": Operation(
        summary="audit logs of one region's brokers, the newest events first",
        query=("region", "event", "limit", "before"),
    ),
    "GET /v1/groups": Operation(
        summary="consumer groups of one region",
        query=("region", "states", "lag"),
    ),
    "GET /v1/groups/{group}": Operation(summary="a group, its members, and where it stands", query=("region",)),
    "DELETE /v1/groups/{group}": Operation(summary="forget a group", query=("region",), status=204, answer=""),
    "POST /v1/groups/{group}/reset-offsets": Operation(
        summary="the new offsets, set if execute is true", query=("region",), body="GroupReset"
    ),
    "GET /v1/queues": Operation(summary="queues of one region", query=("region",)),
    "POST /v1/queues": Operation(summary="create a queue", query=("region",), body="Object", status=201),
    "GET /v1/queues/{queue}": Operation(summary="a queue", query=("region",)),
    "PATCH /v1/queues/{queue}": Operation(summary="change a queue", query=("region",), body="Object"),
    "DELETE /v1/queues/{queue}": Operation(
        summary="delete a queue; its topics stay", query=("region",), status=204, answer=""
    ),
    "POST /v1/queues/{queue}/purge": Operation(summary="everything that is stored counts as done", query=("region",)),
    "POST /v1/queues/{queue}/records": Operation(
        summary="lease records to a consumer",
        query=("region", "consumer", "max", "wait_ms", "session_timeout_ms"),
    ),
    "POST /v1/queues/{queue}/leases": Operation(
        summary="acknowledge, reject, extend or release leases", query=("region",), body="Object"
    ),
    "GET /v1/bindings": Operation(summary="bindings of the mesh", query=("region",)),
    "POST /v1/bindings": Operation(summary="create a binding", query=("region",), body="Object", status=201),
    "DELETE /v1/bindings/{binding}": Operation(summary="delete a binding", query=("region",), status=204, answer=""),
    "GET /v1/brokers": Operation(summary="brokers of one region", query=("region",)),
    "POST /v1/brokers/{broker}": Operation(
        summary="let a broker take replicas", query=("region",), body="NewBroker", body_optional=True
    ),
    "POST /v1/brokers/{broker}/drain": Operation(
        summary="move every replica away from a broker", query=("region",), status=202
    ),
    "DELETE /v1/brokers/{broker}": Operation(
        summary="forget a drained broker for ever", query=("region",), status=204, answer=""
    ),
    "GET /v1/clocks": Operation(summary="how far the clocks of other regions are", query=("region",)),
    "GET /v1/control": Operation(summary="mesh control", query=("region",)),
    "POST /v1/control/recover": Operation(
        summary="begin a new generation of mesh control", query=("region",), body="Confirm"
    ),
    "GET /v1/homes": Operation(
        summary="which region sequences which partition",
        query=("topic", "region"),
    ),
    "POST /v1/homes/move": Operation(summary="begin a planned move", body="Move", status=202, answer="MoveBegun"),
    "POST /v1/homes/failover": Operation(
        summary="take homes away from a region that is gone", body="Failover", status=202, answer="MoveBegun"
    ),
    "GET /v1/homes/moves/{move}": Operation(summary="how far a move is"),
    "GET /v1/regions": Operation(summary="regions of the mesh"),
    "POST /v1/regions": Operation(summary="add a region", body="NewRegion", status=201),
    "POST /v1/regions/{region}/{verb}": Operation(summary="drain a region, or keep it"),
    "DELETE /v1/regions/{region}": Operation(summary="a drained region leaves", query=("force",)),
    "GET /v1/gossip/members": Operation(
        summary="members of a pool",
        query=("region", "pool"),
    ),
    "GET /v1/gossip/rtt": Operation(
        summary="estimated round trip",
        query=("region", "pool", "from", "to"),
    ),
    "GET /v1/gossip/keys": Operation(
        summary="keys of the pool by fingerprint",
        query=("region", "pool"),
    ),
    "POST /v1/gossip/keys": Operation(
        summary="install, use or remove a key",
        query=("region", "pool"),
        body="Object",
    ),
    "POST /v1/gossip/events": Operation(
        summary="tell every member something",
        query=("region", "pool"),
        body="Object",
        status=202,
    ),
    "POST /v1/gossip/queries": Operation(
        summary="ask members something",
        query=("region", "pool"),
        body="Object",
    ),
    "POST /v1/gossip/force-leave": Operation(
        summary="declare a member gone",
        query=("region", "pool"),
        body="Object",
        status=202,
    ),
    "GET /v1/whoami": Operation(summary="the principal of the caller"),
    "GET /v1/users": Operation(summary="users of the mesh"),
    "POST /v1/users": Operation(summary="create a user", body="NewUser", status=201),
    "PATCH /v1/users/{user}": Operation(summary="change a user", body="UserChange"),
    "DELETE /v1/users/{user}": Operation(summary="delete a user", status=204, answer=""),
    "POST /v1/users/{user}/tokens": Operation(summary="make a token, shown this once", body="NewToken", status=201),
    "DELETE /v1/users/{user}/tokens/{token}": Operation(summary="end a token", status=204, answer=""),
    "GET /v1/acls": Operation(summary="the entries of all access control lists"),
    "POST /v1/acls": Operation(summary="add entries", body="AclEntries", status=201),
    "POST /v1/acls/remove": Operation(summary="remove exactly these entries", body="AclEntries", status=204, answer=""),
    "GET /v1/quotas": Operation(summary="all quotas"),
    "POST /v1/quotas": Operation(summary="set a quota", body="Quota"),
}
