"""Who may do what: matching, implications, denials, and what is remembered of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import AccessDenied
from region.security.access import ANONYMOUS, Access, Operation, Principal, Resource
from region.security.acl import Pattern, Permission
from region.security.rules import Authorization, BookRules

ALICE = Principal(name="User:alice", host="10.0.0.1")
BOB = Principal(name="User:bob", host="10.0.0.2")
TOPIC = Resource.TOPIC


@pytest.fixture
def denials() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def access(home: Any, denials: list[tuple[Any, ...]]) -> Access:
    rules = BookRules(book=lambda: home.book, authorization=Authorization.ON)
    return Access(rules, super_users={"User:root"}, denied=lambda *what: denials.append(what))


def test_nothing_is_allowed_that_nobody_granted(access: Access) -> None:
    assert not any(access.allows(ALICE, operation, resource, "x") for operation in Operation for resource in Resource)


def test_a_grant_is_for_its_principal_operation_resource_and_name(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.READ, TOPIC, "orders")
    assert access.allows(ALICE, Operation.READ, TOPIC, "orders")
    assert not access.allows(BOB, Operation.READ, TOPIC, "orders")
    assert not access.allows(ALICE, Operation.WRITE, TOPIC, "orders")
    assert not access.allows(ALICE, Operation.READ, TOPIC, "orders2")
    assert not access.allows(ALICE, Operation.READ, Resource.GROUP, "orders")


@pytest.mark.parametrize("granted", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_describe_comes_with_what_needs_it(home: Any, access: Access, granted: Operation) -> None:
    home.allow("User:alice", granted, TOPIC, "orders")
    assert access.allows(ALICE, Operation.DESCRIBE, TOPIC, "orders")
    assert not access.allows(ALICE, Operation.DESCRIBE_CONFIGS, TOPIC, "orders")


def test_seeing_settings_comes_with_changing_them(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.ALTER_CONFIGS, TOPIC, "orders")
    assert access.allows(ALICE, Operation.DESCRIBE_CONFIGS, TOPIC, "orders")
    assert not access.allows(ALICE, Operation.DESCRIBE, TOPIC, "orders")


def test_all_is_every_operation(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.ALL, TOPIC, "orders")
    assert all(access.allows(ALICE, operation, TOPIC, "orders") for operation in Operation)


def test_a_prefix_is_every_name_that_begins_so(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.READ, TOPIC, "orders.", pattern=Pattern.PREFIXED)
    assert access.allows(ALICE, Operation.READ, TOPIC, "orders.eu")
    assert access.allows(ALICE, Operation.READ, TOPIC, "orders.")
    assert not access.allows(ALICE, Operation.READ, TOPIC, "orders")


def test_a_star_is_every_name_and_every_principal(home: Any, access: Access) -> None:
    home.allow("User:*", Operation.READ, TOPIC, "*")
    assert access.allows(BOB, Operation.READ, TOPIC, "whatever")
    assert access.allows(ANONYMOUS, Operation.READ, TOPIC, "whatever")


def test_a_host_is_an_address_and_nothing_else(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.READ, TOPIC, "orders", host="10.0.0.1")
    assert access.allows(ALICE, Operation.READ, TOPIC, "orders")
    assert not access.allows(Principal(name="User:alice", host="10.0.0.11"), Operation.READ, TOPIC, "orders")


@pytest.mark.parametrize(("name", "pattern"), [("orders", Pattern.LITERAL), ("o", Pattern.PREFIXED), ("*", None)])
def test_a_denial_wins_however_it_is_written(home: Any, access: Access, name: str, pattern: Pattern | None) -> None:
    home.allow("User:alice", Operation.ALL, TOPIC, "orders")
    home.allow("User:*", Operation.READ, TOPIC, name, pattern=pattern or Pattern.LITERAL, permission=Permission.DENY)
    assert not access.allows(ALICE, Operation.READ, TOPIC, "orders")
    assert access.allows(ALICE, Operation.WRITE, TOPIC, "orders")


def test_a_denied_operation_takes_what_it_implies_from_nobody(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.DESCRIBE, TOPIC, "orders")
    home.allow("User:alice", Operation.READ, TOPIC, "orders", permission=Permission.DENY)
    assert access.allows(ALICE, Operation.DESCRIBE, TOPIC, "orders")


def test_super_users_need_no_grant_and_mind_no_denial(home: Any, access: Access) -> None:
    home.allow("User:*", Operation.ALL, TOPIC, "*", permission=Permission.DENY)
    assert access.allows(Principal(name="User:root"), Operation.DELETE, TOPIC, "orders")


def test_a_right_counts_and_ends_with_the_definition_that_says_so(home: Any, access: Access) -> None:
    from region.controller.security_wishes import remove_acls
    from region.security.acl import AclEntry, ResourcePattern

    assert not access.allows(ALICE, Operation.READ, TOPIC, "orders")
    home.allow("User:alice", Operation.READ, TOPIC, "orders")
    assert access.allows(ALICE, Operation.READ, TOPIC, "orders")
    entry = AclEntry(principal="User:alice", operation=Operation.READ)
    home.wish(remove_acls([(ResourcePattern(resource=TOPIC, name="orders"), entry)]))
    assert not access.allows(ALICE, Operation.READ, TOPIC, "orders")


def test_what_is_remembered_is_bounded(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.security.access.ANSWERS_REMEMBERED_MAX", 10)
    for number in range(100):
        access.allows(ALICE, Operation.READ, TOPIC, f"t{number}")
    assert len(access._answers) <= 10


def test_a_check_tells_the_caller_the_kind_and_the_audit_log_the_name(
    access: Access, denials: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(AccessDenied) as refused:
        access.check(ALICE, Operation.READ, TOPIC, "secret-plans")
    assert str(refused.value) == "not authorized for this topic"
    assert denials == [(ALICE, Operation.READ, TOPIC, "secret-plans")]


def test_looking_without_asking_is_not_written_down(access: Access, denials: list[tuple[Any, ...]]) -> None:
    access.allows(ALICE, Operation.READ, TOPIC, "orders")
    access.allows_any(ALICE, Operation.WRITE, TOPIC)
    assert denials == []


@pytest.mark.parametrize(
    ("allowed", "denied", "outcome"),
    [
        ((), (), False),
        ((("orders", Pattern.LITERAL),), (), True),
        ((("o", Pattern.PREFIXED),), (), True),
        ((("orders", Pattern.LITERAL),), (("orders", Pattern.LITERAL),), False),
        ((("orders", Pattern.LITERAL),), (("o", Pattern.PREFIXED),), False),
        ((("orders", Pattern.LITERAL),), (("*", Pattern.LITERAL),), False),
        ((("*", Pattern.LITERAL),), (("o", Pattern.PREFIXED),), True),
        ((("o", Pattern.PREFIXED),), (("orders", Pattern.LITERAL),), True),
    ],
)
def test_some_name_is_allowed_unless_denials_cover_all(
    home: Any, access: Access, allowed: Any, denied: Any, outcome: bool
) -> None:
    for permission, rows in ((Permission.ALLOW, allowed), (Permission.DENY, denied)):
        for name, pattern in rows:
            home.allow("User:alice", Operation.WRITE, TOPIC, name, pattern=pattern, permission=permission)
    assert access.allows_any(ALICE, Operation.WRITE, TOPIC) is outcome


def test_mirrors_are_judged_by_their_plain_name_and_internal_topics_are_for_super_users(home: Any) -> None:
    plain = {"eu.orders": "orders", "__own": None}
    access = Access(
        BookRules(book=lambda: home.book, authorization=Authorization.ON),
        super_users={"User:root"},
        plain_topic=lambda name: plain.get(name, name),
    )
    home.allow("User:alice", Operation.ALL, TOPIC, "*")
    home.allow("User:alice", Operation.READ, TOPIC, "orders", permission=Permission.DENY)
    assert not access.allows(ALICE, Operation.READ, TOPIC, "eu.orders")
    assert not access.allows(ALICE, Operation.READ, TOPIC, "__own")
    assert access.allows(Principal(name="User:root"), Operation.READ, TOPIC, "__own")


def test_authorized_operations_are_kafkas_bits(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.READ, TOPIC, "orders")
    assert access.authorized_operations(ALICE, TOPIC, "orders") == 1 << 3 | 1 << 8
    assert access.authorized_operations(BOB, TOPIC, "orders") == 0


def test_creating_a_topic_takes_the_right_on_it_or_on_the_cluster(home: Any, access: Access) -> None:
    home.allow("User:alice", Operation.CREATE, TOPIC, "orders")
    home.allow("User:bob", Operation.CREATE, Resource.CLUSTER, "kafka-cluster")
    access.check_create_topic(ALICE, "orders")
    access.check_create_topic(BOB, "anything")
    with pytest.raises(AccessDenied):
        access.check_create_topic(ALICE, "anything")


@pytest.mark.parametrize(
    ("authorization", "is_loopback_only", "signs_in", "enforced"),
    [
        (Authorization.AUTO, True, False, False),
        (Authorization.AUTO, True, True, True),
        (Authorization.AUTO, False, False, True),
        (Authorization.ON, True, False, True),
        (Authorization.OFF, False, True, False),
    ],
)
def test_lists_are_enforced_off_loopback_and_where_anybody_signs_in(
    home: Any, authorization: Authorization, is_loopback_only: bool, signs_in: bool, enforced: bool
) -> None:
    rules = BookRules(
        book=lambda: home.book,
        authorization=authorization,
        sign_in_needed=lambda: signs_in,
        is_loopback_only=is_loopback_only,
    )
    assert Access(rules).allows(ALICE, Operation.READ, TOPIC, "orders") is not enforced


async def test_a_change_whose_caller_goes_is_noted_as_unknown_and_a_defect_as_internal() -> None:
    noted: list[tuple[str, str]] = []

    def note(principal: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
        noted.append((what, outcome))

    access = Access.open(changed=note)

    async def change() -> None:
        with access.noted(ALICE, "topic.created", topic="t"):
            await asyncio.get_running_loop().create_future()

    task = asyncio.get_running_loop().create_task(change())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ZeroDivisionError), access.noted(ALICE, "topic.deleted", topic="t"):
        raise ZeroDivisionError
    assert noted == [("topic.created", "OUTCOME_UNKNOWN"), ("topic.deleted", "INTERNAL")]
