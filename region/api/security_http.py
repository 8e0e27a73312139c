"""/v1/whoami, /v1/users, /v1/acls, /v1/quotas: who somebody is, and what administrators see and change.

Rule 1: no key and no hash leaves; a token is shown once, when it is made.
Rule 2: fields are strict: what is unknown is refused, so that a typing error never grants more than was meant.
Access is checked behind it, in region.security.administration.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from georelay.credentials import PASSWORD_CHARS_MAX, PASSWORD_CHARS_MIN
from georelay.errors import BadRequest, Unavailable
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, parse_object
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.records_http import json_response
from region.controller.security_wishes import BINDINGS_PER_WISH_MAX, binding_to_json, read_binding
from region.security.access import Access, Principal
from region.security.acl import CLUSTER_NAME, AclEntry, ResourcePattern
from region.security.administration import TOKEN_DAYS_MAX, SecurityAdmin
from region.security.definition import BYTES_PER_S_MAX, SHARE_PPM_MAX, Quota, read_principal
from region.security.sign_in import SignInService
from region.security.user import TOKEN_NAME, User, read_user_name


class SecurityHttp:
    """The handlers."""

    def __init__(self, *, sign_in: SignInService, access: Access, admin: SecurityAdmin | None) -> None:
        self._sign_in = sign_in
        self._access = access
        self._admin_or_none = admin

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/whoami", self.whoami, allow_head=False),
            web.get("/v1/users", self.users, allow_head=False),
            web.post("/v1/users", self.add_user),
            web.patch("/v1/users/{user}", self.change_user),
            web.delete("/v1/users/{user}", self.delete_user),
            web.post("/v1/users/{user}/tokens", self.add_token),
            web.delete("/v1/users/{user}/tokens/{token}", self.delete_token),
            web.get("/v1/acls", self.acls, allow_head=False),
            web.post("/v1/acls", self.add_acls),
            web.post("/v1/acls/remove", self.remove_acls),
            web.get("/v1/quotas", self.quotas, allow_head=False),
            web.post("/v1/quotas", self.set_quota),
        ]

    async def whoami(self, request: web.Request) -> web.Response:
        """Answer GET /v1/whoami: whoever gets an answer is signed in, or does not have to be."""
        principal: Principal = request[PRINCIPAL]
        return json_response(
            {
                "principal": principal.name,
                "host": principal.host,
                "is_super_user": self._access.is_super_user(principal),
                "sign_in_required": self._sign_in.required,
                "authorization_enforced": self._access.enforced,
            }
        )

    async def users(self, request: web.Request) -> web.Response:
        """Answer GET /v1/users."""
        return json_response({"users": [user_json(user) for user in self._admin.users(request[PRINCIPAL])]})

    async def add_user(self, request: web.Request) -> web.Response:
        """Answer POST /v1/users."""
        self._admin.check_may_change(request[PRINCIPAL])
        fields = await read_wish(request, _fields)
        try:
            name = read_user_name(fields, "name")
            password = _password(fields)
            expires_s = fields.integer("expires_s", low=0, high=INT64_MAX) if fields.has("expires_s") else 0
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        await self._admin.add_user(request[PRINCIPAL], name, password, expires_s=expires_s)
        return json_response({"name": name}, status=201)

    async def change_user(self, request: web.Request) -> web.Response:
        """Answer PATCH /v1/users/{user}: what is not named stays."""
        self._admin.check_may_change(request[PRINCIPAL])
        fields = await read_wish(request, _fields)
        name = _user_of(request)
        try:
            password = _password(fields)
            is_enabled = fields.flag("enabled") if fields.has("enabled") else None
            expires_s = fields.integer("expires_s", low=0, high=INT64_MAX) if fields.has("expires_s") else None
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        await self._admin.change_user(
            request[PRINCIPAL], name, password=password, is_enabled=is_enabled, expires_s=expires_s
        )
        return json_response({"name": name})

    async def delete_user(self, request: web.Request) -> web.Response:
        """Answer DELETE /v1/users/{user}."""
        await self._admin.delete_user(request[PRINCIPAL], _user_of(request))
        return web.Response(status=204)

    async def add_token(self, request: web.Request) -> web.Response:
        """Answer POST /v1/users/{user}/tokens with the token, for the only time."""
        self._admin.check_may_change(request[PRINCIPAL], own=_user_of(request))
        fields = await read_wish(request, _fields)
        try:
            name = fields.text("name", chars_max=64, pattern=TOKEN_NAME)
            days = fields.integer("days", low=1, high=TOKEN_DAYS_MAX)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        token, expires_s = await self._admin.add_token(request[PRINCIPAL], _user_of(request), name, days=days)
        return json_response({"name": name, "token": token, "expires_s": expires_s}, status=201)

    async def delete_token(self, request: web.Request) -> web.Response:
        """Answer DELETE /v1/users/{user}/tokens/{token}."""
        await self._admin.delete_token(request[PRINCIPAL], _user_of(request), request.match_info["token"])
        return web.Response(status=204)

    async def acls(self, request: web.Request) -> web.Response:
        """Answer GET /v1/acls."""
        rows = [
            binding_to_json(acls.pattern, entry)
            for acls in self._admin.lists(request[PRINCIPAL])
            for entry in acls.entries
        ]
        return json_response({"entries": rows})

    async def add_acls(self, request: web.Request) -> web.Response:
        """Answer POST /v1/acls."""
        self._admin.check_may_change(request[PRINCIPAL])
        bindings = _bindings(await read_wish(request, _fields))
        await self._admin.add_acls(request[PRINCIPAL], bindings)
        return json_response({"entries": [binding_to_json(*binding) for binding in bindings]}, status=201)

    async def remove_acls(self, request: web.Request) -> web.Response:
        """Answer POST /v1/acls/remove: exactly these entries, whether they are there or not."""
        self._admin.check_may_change(request[PRINCIPAL])
        bindings = _bindings(await read_wish(request, _fields))
        await self._admin.remove_acls(request[PRINCIPAL], bindings)
        return web.Response(status=204)

    async def quotas(self, request: web.Request) -> web.Response:
        """Answer GET /v1/quotas."""
        return json_response({"quotas": [quota_json(quota) for quota in self._admin.quotas(request[PRINCIPAL])]})

    async def set_quota(self, request: web.Request) -> web.Response:
        """Answer POST /v1/quotas: what is not named stays, 0 takes a limit away."""
        self._admin.check_may_change(request[PRINCIPAL])
        fields = await read_wish(request, _fields)
        try:
            of = read_principal(fields)
            produce = _optional(fields, "produce_bytes_per_s", BYTES_PER_S_MAX)
            fetch = _optional(fields, "fetch_bytes_per_s", BYTES_PER_S_MAX)
            share = _optional(fields, "request_share_ppm", SHARE_PPM_MAX)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        await self._admin.set_quota(
            request[PRINCIPAL], of, produce_bytes_per_s=produce, fetch_bytes_per_s=fetch, request_share_ppm=share
        )
        return json_response({"principal": of})

    @property
    def _admin(self) -> SecurityAdmin:
        if self._admin_or_none is None:
            raise Unavailable("this broker does not administer users")
        return self._admin_or_none


def user_json(user: User) -> dict[str, Any]:
    """Return what the API says of a user."""
    return {
        "name": user.name,
        "enabled": user.is_enabled,
        "expires_s": user.expires_s or None,
        "mechanisms": [key.mechanism.value for key in user.keys],
        "tokens": [{"name": token.name, "expires_s": token.expires_s} for token in user.tokens],
    }


def quota_json(quota: Quota) -> dict[str, Any]:
    """Return what the API says of a quota; what has no limit is null."""
    return {
        "principal": quota.principal,
        "produce_bytes_per_s": quota.produce_bytes_per_s or None,
        "fetch_bytes_per_s": quota.fetch_bytes_per_s or None,
        "request_share_ppm": quota.request_share_ppm or None,
    }


def _fields(body: bytes) -> Fields:
    try:
        return Fields(parse_object(body), "body")
    except FieldError as error:
        raise BadRequest(f"the body: {error}") from error


def _user_of(request: web.Request) -> str:
    try:
        return read_user_name(Fields({"user": request.match_info["user"]}, "path"), "user")
    except FieldError as error:
        raise BadRequest(str(error)) from error


def _password(fields: Fields) -> str | None:
    if not fields.has("password"):
        return None
    password = fields.text("password", chars_max=PASSWORD_CHARS_MAX)
    if len(password) < PASSWORD_CHARS_MIN:
        raise BadRequest(f"a password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters")
    return password


def _optional(fields: Fields, name: str, high: int) -> int | None:
    return fields.integer(name, low=0, high=high) if fields.has(name) else None


def _bindings(fields: Fields) -> list[tuple[ResourcePattern, AclEntry]]:
    try:
        bindings = [read_binding(_completed(item)) for item in fields.items("entries", count_max=BINDINGS_PER_WISH_MAX)]
        fields.done()
    except FieldError as error:
        raise BadRequest(str(error)) from error
    return bindings


def _completed(item: object) -> object:
    """Return an entry with the defaults of what may be left out."""
    if not isinstance(item, dict):
        return item
    defaults: JsonObject = {"host": "*", "permission": "allow", "pattern": "literal"}
    if item.get("resource") == "cluster":
        defaults["name"] = CLUSTER_NAME
    return defaults | item
