"""What administrators wish of users, lists and quotas, and the definitions that fulfil it.

Rule 1: a wish says how it shall be, not what to do: the same wish twice changes nothing the second time.
Rule 2: a wish is judged against the newest definitions, at the definitions home only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from georelay.errors import BadRequest, PolicyViolation, UnknownBinding
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from region.controller.security_book import SecurityBook
from region.routing.binding import BINDING_NAME, Binding
from region.security.acl import AclEntry, ResourcePattern
from region.security.definition import (
    BYTES_PER_S_MAX,
    ENTRIES_PER_LIST_MAX,
    SHARE_PPM_MAX,
    AclList,
    Grave,
    Kind,
    Quota,
    SecurityDefinition,
    entry_order,
    entry_to_json,
    kind_of,
    pattern_to_json,
    read_entry,
    read_pattern,
    read_principal,
)
from region.security.user import (
    TOKEN_NAME,
    TOKENS_PER_USER_MAX,
    BearerToken,
    Mechanism,
    ScramKey,
    User,
    read_user_name,
)

BINDINGS_PER_WISH_MAX: Final = 1_000
Planned = list[SecurityDefinition]


def put_user(
    name: str,
    *,
    keys: Iterable[ScramKey] = (),
    without: Iterable[Mechanism] = (),
    is_enabled: bool | None = None,
    expires_s: int | None = None,
    is_new: bool | None = None,
) -> JsonObject:
    """Return the wish for a user with these keys and states (None: as it is).

    `is_new` True: it must not be there yet; False: it must be; None: either.
    """
    wish: JsonObject = {"wish": "put_user", "name": name, "keys": [key.to_json() for key in keys]}
    wish["without"] = [mechanism.value for mechanism in without]
    optional = {"enabled": is_enabled, "expires_s": expires_s, "new": is_new}
    return wish | {field: value for field, value in optional.items() if value is not None}


def delete_user(name: str) -> JsonObject:
    """Return the wish that a user and its tokens are gone."""
    return {"wish": "delete_user", "name": name}


def put_token(user: str, token: BearerToken) -> JsonObject:
    """Return the wish for a token of a user; one of the same name is replaced."""
    return {"wish": "put_token", "name": user, "token": token.to_json()}


def delete_token(user: str, token: str) -> JsonObject:
    """Return the wish that a token is gone."""
    return {"wish": "delete_token", "name": user, "token": token}


def add_acls(bindings: Iterable[tuple[ResourcePattern, AclEntry]]) -> JsonObject:
    """Return the wish that these entries are there."""
    return {"wish": "add_acls", "bindings": _bindings(bindings)}


def remove_acls(bindings: Iterable[tuple[ResourcePattern, AclEntry]]) -> JsonObject:
    """Return the wish that these entries are gone."""
    return {"wish": "remove_acls", "bindings": _bindings(bindings)}


def put_quota(
    principal: str,
    *,
    produce_bytes_per_s: int | None = None,
    fetch_bytes_per_s: int | None = None,
    request_share_ppm: int | None = None,
) -> JsonObject:
    """Return the wish for a quota; None leaves a value as it is, 0 takes the limit away."""
    values = {
        "produce_bytes_per_s": produce_bytes_per_s,
        "fetch_bytes_per_s": fetch_bytes_per_s,
        "request_share_ppm": request_share_ppm,
    }
    return {"wish": "put_quota", "principal": principal} | {k: v for k, v in values.items() if v is not None}


def put_binding(binding: Binding) -> JsonObject:
    """Return the wish for a new binding (PolicyViolation when one of its name is there, with another content)."""
    return {"wish": "put_binding", "binding": replace(binding, index=0).to_json()}


def delete_binding(name: str) -> JsonObject:
    """Return the wish that a binding is gone."""
    return {"wish": "delete_binding", "name": name}


def plan(book: SecurityBook, wish: JsonObject) -> Planned:
    """Return the definitions (index 0) that fulfil a wish; none when it is so already.

    Raises:
        BadRequest, PolicyViolation: it cannot be; the text says why.
    """
    try:
        fields = Fields(wish, "wish")
        planned = _PLANS[_word(fields)](book, fields)
        fields.done()
    except FieldError as error:
        raise BadRequest(str(error)) from error
    return [definition for definition in planned if _is_change(book, definition)]


def _word(fields: Fields) -> str:
    word = fields.text("wish", chars_max=40)
    if word not in _PLANS:
        raise FieldError(f"wish {word!r} is unknown")
    return word


def _is_change(book: SecurityBook, definition: SecurityDefinition) -> bool:
    known = book.find(kind_of(definition), definition.key)
    if known is None:
        return not isinstance(definition, Grave)
    return replace(known, index=0) != definition


def _put_user(book: SecurityBook, fields: Fields) -> Planned:
    name = read_user_name(fields, "name")
    keys = tuple(ScramKey.from_json(item) for item in fields.items("keys", count_max=len(Mechanism)))
    without = [_mechanism(item) for item in fields.items("without", count_max=len(Mechanism))]
    is_enabled = fields.flag("enabled") if fields.has("enabled") else None
    expires_s = fields.integer("expires_s", low=0, high=INT64_MAX) if fields.has("expires_s") else None
    is_new = fields.flag("new") if fields.has("new") else None
    known = book.user(name)
    if is_new and known is not None and replace(known, index=0) != User(name=name).with_keys(keys):
        raise PolicyViolation(f"user {name} is there already")
    if is_new is False and known is None:
        raise PolicyViolation(f"there is no user {name}")
    user = replace(known, index=0) if known is not None else User(name=name)
    user = replace(user, keys=tuple(key for key in user.keys if key.mechanism not in without)).with_keys(keys)
    return [
        replace(
            user,
            is_enabled=user.is_enabled if is_enabled is None else is_enabled,
            expires_s=user.expires_s if expires_s is None else expires_s,
        )
    ]


def _mechanism(item: object) -> Mechanism:
    return Fields({"mechanism": item}, "wish").member("mechanism", Mechanism)


def _delete_user(book: SecurityBook, fields: Fields) -> Planned:
    return [Grave(kind=Kind.USER, key=_known_user(book, fields).name)]


def _put_token(book: SecurityBook, fields: Fields) -> Planned:
    user = _known_user(book, fields)
    token = BearerToken.from_json(fields.value("token"))
    tokens = {known.name: known for known in user.tokens} | {token.name: token}
    if len(tokens) > TOKENS_PER_USER_MAX:
        raise PolicyViolation(f"user {user.name} has {TOKENS_PER_USER_MAX} tokens, its maximum; delete one first")
    return [replace(user, index=0, tokens=tuple(tokens[name] for name in sorted(tokens)))]


def _delete_token(book: SecurityBook, fields: Fields) -> Planned:
    user = _known_user(book, fields)
    name = fields.text("token", chars_max=64, pattern=TOKEN_NAME)
    return [replace(user, index=0, tokens=tuple(token for token in user.tokens if token.name != name))]


def _known_user(book: SecurityBook, fields: Fields) -> User:
    name = read_user_name(fields, "name")
    user = book.user(name)
    if user is None:
        raise PolicyViolation(f"there is no user {name}")
    return user


def _add_acls(book: SecurityBook, fields: Fields) -> Planned:
    return _change_lists(book, fields, lambda entries, changed: entries | changed)


def _remove_acls(book: SecurityBook, fields: Fields) -> Planned:
    return _change_lists(book, fields, lambda entries, changed: entries - changed)


def _change_lists(
    book: SecurityBook, fields: Fields, change: Callable[[set[AclEntry], set[AclEntry]], set[AclEntry]]
) -> Planned:
    changed: dict[ResourcePattern, set[AclEntry]] = {}
    for item in fields.items("bindings", count_max=BINDINGS_PER_WISH_MAX):
        pattern, entry = read_binding(item)
        changed.setdefault(pattern, set()).add(entry)
    planned: Planned = []
    for pattern, entries in changed.items():
        known = book.find(Kind.ACLS, pattern.key)
        before = set(known.entries) if isinstance(known, AclList) else set()
        after = change(before, entries)
        if len(after) > ENTRIES_PER_LIST_MAX:
            text = f"{pattern.key[:100]} would have {len(after)} entries, over {ENTRIES_PER_LIST_MAX}"
            raise PolicyViolation(text)
        if after:
            planned.append(AclList(pattern=pattern, entries=tuple(sorted(after, key=entry_order))))
        else:
            planned.append(Grave(kind=Kind.ACLS, key=pattern.key))
    return planned


def _put_quota(book: SecurityBook, fields: Fields) -> Planned:
    principal = read_principal(fields)
    limits = {
        "produce_bytes_per_s": BYTES_PER_S_MAX,
        "fetch_bytes_per_s": BYTES_PER_S_MAX,
        "request_share_ppm": SHARE_PPM_MAX,
    }
    given = {name: fields.integer(name, low=0, high=high) for name, high in limits.items() if fields.has(name)}
    known = book.quota(principal) or Quota(principal=principal)
    quota = Quota(
        principal=principal,
        produce_bytes_per_s=given.get("produce_bytes_per_s", known.produce_bytes_per_s),
        fetch_bytes_per_s=given.get("fetch_bytes_per_s", known.fetch_bytes_per_s),
        request_share_ppm=given.get("request_share_ppm", known.request_share_ppm),
    )
    if not (quota.produce_bytes_per_s or quota.fetch_bytes_per_s or quota.request_share_ppm):
        return [Grave(kind=Kind.QUOTA, key=principal)]
    return [quota]


def _put_binding(book: SecurityBook, fields: Fields) -> Planned:
    binding = Binding.from_json(fields.value("binding"))
    known = book.find(Kind.BINDING, binding.name)
    if isinstance(known, Binding) and replace(known, index=0) != binding:
        raise PolicyViolation(f"binding {binding.name!r} is there already, with another definition; remove it first")
    return [binding]


def _delete_binding(book: SecurityBook, fields: Fields) -> Planned:
    name = fields.text("name", chars_max=100, pattern=BINDING_NAME)
    if not isinstance(book.find(Kind.BINDING, name), Binding):
        raise UnknownBinding(f"there is no binding {name!r}")
    return [Grave(kind=Kind.BINDING, key=name)]


_PLANS: Final[dict[str, Callable[[SecurityBook, Fields], Planned]]] = {
    "put_user": _put_user,
    "delete_user": _delete_user,
    "put_token": _put_token,
    "delete_token": _delete_token,
    "add_acls": _add_acls,
    "remove_acls": _remove_acls,
    "put_quota": _put_quota,
    "put_binding": _put_binding,
    "delete_binding": _delete_binding,
}


def _bindings(bindings: Iterable[tuple[ResourcePattern, AclEntry]]) -> list[JsonObject]:
    return [binding_to_json(pattern, entry) for pattern, entry in bindings]


def binding_to_json(pattern: ResourcePattern, entry: AclEntry) -> JsonObject:
    """Return one entry with what it is about, as wishes and HTTP write it."""
    return pattern_to_json(pattern) | entry_to_json(entry)


def read_binding(value: object) -> tuple[ResourcePattern, AclEntry]:
    """Read what `binding_to_json` made. Raises FieldError."""
    fields = Fields(value, "binding")
    pattern = read_pattern(fields)
    entry = read_entry(fields, pattern.resource)
    fields.done()
    return pattern, entry
