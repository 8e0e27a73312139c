"""Decisions against a model without any index; wishes are idempotent; definitions come back from their JSON."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from region.controller import security_wishes
from region.controller.security_book import SecurityBook
from region.security import definition
from region.security.acl import (
    OPERATIONS_OF,
    AclEntry,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourcePattern,
    granted_by,
)
from region.security.acl_core import AclIndex

NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "a*"])
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*"])
HOSTS = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
RESOURCES = st.sampled_from([Resource.TOPIC, Resource.GROUP])


@st.composite
def bindings(draw: st.DrawFn) -> tuple[ResourcePattern, AclEntry]:
    resource = draw(RESOURCES)
    name = draw(NAMES)
    pattern = Pattern.LITERAL if name == "*" else draw(st.sampled_from(Pattern))
    entry = AclEntry(
        principal=draw(PRINCIPALS),
        operation=draw(st.sampled_from([Operation.ALL, *OPERATIONS_OF[resource]])),
        permission=draw(st.sampled_from(Permission)),
        host=draw(HOSTS),
    )
    return ResourcePattern(resource=resource, name=name, pattern=pattern), entry


def model(
    rows: list[tuple[ResourcePattern, AclEntry]], principal: str, host: str, operation: Operation, name: str
) -> bool:
    about = [
        entry
        for pattern, entry in rows
        if pattern.resource is Resource.TOPIC and pattern.matches(name) and entry.concerns(principal, host)
    ]
    denied = any(
        entry.permission is Permission.DENY and entry.operation in (operation, Operation.ALL) for entry in about
    )
    allowed = any(entry.permission is Permission.ALLOW and entry.operation in granted_by(operation) for entry in about)
    return allowed and not denied


def index_of(rows: list[tuple[ResourcePattern, AclEntry]]) -> AclIndex:
    lists: dict[ResourcePattern, list[AclEntry]] = {}
    for pattern, entry in rows:
        lists.setdefault(pattern, []).append(entry)
    return AclIndex(lists.items())


@given(
    rows=st.lists(bindings(), max_size=12),
    principal=st.sampled_from(["User:a", "User:b", "User:c"]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    operation=st.sampled_from(OPERATIONS_OF[Resource.TOPIC]),
    name=st.sampled_from(["a", "ab", "abc", "abcd", "b", "c", "*", "a*"]),
)
def test_the_index_decides_as_looking_at_every_entry_does(
    rows: list[tuple[ResourcePattern, AclEntry]], principal: str, host: str, operation: Operation, name: str
) -> None:
    decided = index_of(rows).allows(principal, host, operation, Resource.TOPIC, name)
    assert decided is model(rows, principal, host, operation, name)


@given(rows=st.lists(bindings(), max_size=12), operation=st.sampled_from(OPERATIONS_OF[Resource.TOPIC]))
def test_where_no_name_is_allowed_none_of_those_tried_is(
    rows: list[tuple[ResourcePattern, AclEntry]], operation: Operation
) -> None:
    index = index_of(rows)
    some = index.allows_any("User:a", "10.0.0.1", operation, Resource.TOPIC)
    tried = [f"{begin}{end}" for begin in ("", "a", "ab", "abc", "b", "a*") for end in ("", "-z", "z")]
    found = any(index.allows("User:a", "10.0.0.1", operation, Resource.TOPIC, name) for name in tried if name)
    assert some or not found


@given(rows=st.lists(bindings(), max_size=30), removed=st.lists(bindings(), max_size=30))
def test_wishes_about_lists_are_fulfilled_once(
    rows: list[tuple[ResourcePattern, AclEntry]], removed: list[tuple[ResourcePattern, AclEntry]]
) -> None:
    book = SecurityBook()
    for wish in (security_wishes.add_acls(rows), security_wishes.remove_acls(removed)):
        for planned in security_wishes.plan(book, wish):
            book.remember(replace(planned, index=book.index + 1))
        assert security_wishes.plan(book, wish) == []
    left = {(acls.pattern, entry) for acls in book.acls() for entry in acls.entries}
    assert left == set(rows) - set(removed)
    assert book.entry_count == len(left)
    for row in book.everything():
        assert definition.from_json(definition.to_json(row)) == row
