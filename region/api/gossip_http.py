"""Gossip over HTTP: who is there, how far, with which keys; events, queries, and the end of a member that is gone.

Rule 1: a key never leaves in an answer: keys are named by the beginning of their SHA-256. Only `install` takes one.
Rule 2: `?pool=lan|wan` names the pool, the default is the first this broker is in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest, Unavailable
from mesh.gossip.agent_answers import KeyReport, fingerprint, fingerprint_of_text
from mesh.gossip.faults import GossipFault
from mesh.gossip.key_queries_core import INSTALL_KEY, LIST_KEYS, REMOVE_KEY, USE_KEY
from mesh.gossip.keyring import decode_key
from mesh.gossip.pools import GossipPools, Pool
from mesh.gossip.query_core import EXPRESSION_CHARS_MAX, names_filter, tag_filter
from mesh.gossip.rpc_connection import RpcFault
from mesh.gossip.serf_core import EVENT_BYTES_MAX, TooLong
from mesh.gossip.serf_messages import NAME_CHARS_MAX
from mesh.gossip.view import MemberView
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.security.access import Access, Operation, Resource

TIMEOUT_MS_MAX: Final = 60_000
FILTER_MEMBERS_MAX: Final = 256
KEY_ACTIONS: Final = {"install": INSTALL_KEY, "use": USE_KEY, "remove": REMOVE_KEY}
_EVENT_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{6,64}")


class GossipHttp:
    """Handlers of /v1/gossip. `pools` None: this broker does not gossip."""

    def __init__(self, pools: GossipPools | None, access: Access) -> None:
        self._pools = pools
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/gossip/members", self._members),
            web.get("/v1/gossip/rtt", self._rtt),
            web.get("/v1/gossip/keys", self._list_keys),
            web.post("/v1/gossip/keys", self._change_keys),
            web.post("/v1/gossip/events", self._send_event),
            web.post("/v1/gossip/queries", self._ask),
            web.post("/v1/gossip/force-leave", self._force_leave),
        ]

    def _noted(self, request: web.Request, pool: Pool, action: str, of: str) -> AbstractContextManager[None]:
        return self._access.noted(request[PRINCIPAL], "gossip.changed", pool=pool.name, action=action, of=of)

    def _pool(self, request: web.Request, operation: Operation) -> Pool:
        """Return the pool that is meant, if the caller may do this with it (AccessDenied)."""
        self._access.check(request[PRINCIPAL], operation, Resource.CLUSTER)
        if self._pools is None:
            raise Unavailable("this broker does not gossip: its configuration has no [gossip]")
        name = request.query.get("pool", "") or next(iter(self._pools.pools))
        pool = self._pools.pools.get(name)
        if pool is None:
            raise BadRequest(f"pool: this broker is in {', '.join(self._pools.pools)}, not in {name[:16]!r}")
        return pool

    async def _members(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.DESCRIBE)
        assert self._pools is not None
        health = pool.health()
        return json_response(
            {
                "pool": pool.name,
                "self": pool.own_name,
                "encrypted": health.encrypted,
                "awareness": health.awareness,
                "main_loop": {
                    "pulse": self._pools.watchdog.pulse.value or "steady",
                    "lag_ms": round(self._pools.watchdog.lag_s * 1000, 1),
                },
                "members": [member_json(member) for member in pool.members()],
            }
        )

    async def _rtt(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.DESCRIBE)
        first = request.query.get("from", "") or pool.own_name
        second = request.query.get("to", "")
        names = {member.name for member in pool.members()}
        for name in (first, second):
            if name not in names:
                raise BadRequest(f"{name[:NAME_CHARS_MAX]!r} is no member of the pool {pool.name}")
        rtt_s = await pool.rtt(first, second)
        return json_response({"from": first, "to": second, "rtt_ms": None if rtt_s is None else round(rtt_s * 1e3, 3)})

    async def _list_keys(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.DESCRIBE)
        return json_response(keys_json(await self._asked_keys(pool, LIST_KEYS, b"")))

    async def _change_keys(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.ALTER)
        body = await _object(request, {"action", "key"})
        action, text = body.get("action"), body.get("key")
        if action not in KEY_ACTIONS or not isinstance(text, str):
            raise BadRequest(f"action: one of {', '.join(KEY_ACTIONS)}; key: base64, or a fingerprint that is listed")
        key = await self._key_of(pool, text, may_be_listed=action != "install")
        with self._noted(request, pool, f"key {action}", fingerprint(key)):
            report = await self._asked_keys(pool, KEY_ACTIONS[action], key)
        return json_response({"action": action, "key": fingerprint(key), **keys_json(report)})

    async def _key_of(self, pool: Pool, text: str, *, may_be_listed: bool) -> bytes:
        """Return the key that is written, or that a listed fingerprint names (BadRequest)."""
        try:
            if not may_be_listed or _FINGERPRINT.fullmatch(text) is None:
                return decode_key(text)
            listed = (await self._asked_keys(pool, LIST_KEYS, b"")).keys
            found = [key for key in listed if fingerprint_of_text(key).startswith(text)]
            if len(found) != 1:
                raise BadRequest(f"key: {len(found)} keys of the pool have that fingerprint")
            return decode_key(found[0])
        except GossipFault as fault:
            raise BadRequest(f"key: {fault}") from fault

    async def _asked_keys(self, pool: Pool, action: str, key: bytes) -> KeyReport:
        report: KeyReport = await _answered(pool.keys(action, key))
        return report

    async def _send_event(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.ALTER)
        body = await _object(request, {"name", "payload", "coalesce"})
        name, payload = _event_name(body), _text(body, "payload", EVENT_BYTES_MAX)
        with self._noted(request, pool, "event", name):
            await _answered(pool.tell(name, payload.encode(), coalesce=body.get("coalesce") is True))
        return json_response({"name": name, "pool": pool.name}, status=202)

    async def _ask(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.ALTER)
        body = await _object(request, {"name", "payload", "timeout_ms", "members", "tags", "relay"})
        timeout_ms, relay = body.get("timeout_ms", 0), body.get("relay", 0)
        if type(timeout_ms) is not int or not 0 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise BadRequest(f"timeout_ms: must be 0..{TIMEOUT_MS_MAX}; 0: what the pool's size needs")
        if type(relay) is not int or not 0 <= relay <= 16:
            raise BadRequest("relay: must be 0..16")
        name, payload, filters = _event_name(body), _text(body, "payload", EVENT_BYTES_MAX), _filters(body)
        with self._noted(request, pool, "query", name):
            report = await _answered(
                pool.query(
                    name,
                    payload.encode(),
                    filters=filters,
                    ack=True,
                    relay_factor=relay,
                    timeout_s=timeout_ms / 1000,
                )
            )
        answers = {name: payload.decode("utf-8", "replace") for name, payload in report.answers.items()}
        return json_response({"acknowledged": list(report.acknowledged), "answers": answers})

    async def _force_leave(self, request: web.Request) -> web.Response:
        pool = self._pool(request, Operation.ALTER)
        body = await _object(request, {"member", "prune"})
        name = _text(body, "member", NAME_CHARS_MAX)
        if name not in {member.name for member in pool.members()}:
            raise BadRequest(f"member: {name!r} is no member of the pool {pool.name}")
        if name == pool.own_name:
            raise BadRequest("member: that is the broker that was asked; stop it and it leaves")
        with self._noted(request, pool, "force-leave", name):
            await _answered(pool.make_leave(name, prune=body.get("prune") is True))
        return json_response({"member": name, "pool": pool.name}, status=202)


def member_json(member: MemberView) -> dict[str, Any]:
    """Return what the API says of a member; an unknown round trip is null."""
    host, port = member.address
    return {
        "name": member.name,
        "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "status": member.status.value,
        "rtt_ms": None if member.rtt_s is None else round(member.rtt_s * 1e3, 3),
        "tags": dict(sorted(member.tags.items())),
    }


def keys_json(report: KeyReport) -> dict[str, Any]:
    """Return what the API says of a keyring command, keys by fingerprint."""
    return {
        "members": report.members,
        "answered": report.answered,
        "done": report.done,
        "faults": dict(report.faults),
        "keys": [
            {
                "fingerprint": fingerprint_of_text(key),
                "members": count,
                "primary_of": report.primaries.get(key, 0),
            }
            for key, count in sorted(report.keys.items(), key=lambda row: (-row[1], fingerprint_of_text(row[0])))
        ],
    }


async def _answered(work: Any) -> Any:
    """Return what a pool answers; what it refuses becomes an error of ours."""
    try:
        return await work
    except TooLong as error:
        raise BadRequest(str(error)) from error
    except (RpcFault, TimeoutError) as error:
        raise Unavailable(f"the external serf agent: {error or 'no answer in time'}") from error


async def _object(request: web.Request, known: set[str]) -> dict[str, Any]:
    value = await read_wish(request, parse_json)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRequest("the body has half of a surrogate pair, which no text can have") from error
    unknown = value.keys() - known
    if unknown:
        raise BadRequest(f"{min(unknown)[:64]}: unknown field; known are {', '.join(sorted(known))}")
    return value


def _text(body: Mapping[str, Any], name: str, bytes_max: int) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value.encode()) > bytes_max:
        raise BadRequest(f"{name}: must be a text of at most {bytes_max} bytes")
    return value


def _event_name(body: Mapping[str, Any]) -> str:
    name = body.get("name")
    if not isinstance(name, str) or _EVENT_NAME.fullmatch(name) is None or name.startswith("_serf_"):
        raise BadRequest("name: 1..64 letters, digits, dots, hyphens, underscores; not beginning with _serf_")
    return name


def _filters(body: Mapping[str, Any]) -> list[bytes]:
    members, tags = body.get("members", []), body.get("tags", {})
    if (
        not isinstance(members, list)
        or len(members) > FILTER_MEMBERS_MAX
        or not all(_is_text(name) for name in members)
    ):
        raise BadRequest(f"members: must be a list of at most {FILTER_MEMBERS_MAX} names")
    if not isinstance(tags, dict) or len(tags) > 16 or not all(_is_text(text) for row in tags.items() for text in row):
        raise BadRequest("tags: must be an object of at most 16 tags to regular expressions")
    filters = [names_filter(members)] if members else []
    return filters + [tag_filter(tag, expression) for tag, expression in tags.items()]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= EXPRESSION_CHARS_MAX
