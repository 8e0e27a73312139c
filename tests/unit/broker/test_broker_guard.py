"""Who may do everything, and when lists are enforced, by the configuration of a broker."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.credentials import Credentials, write_users_file
from georelay.errors import PolicyViolation
from region.broker.guard import Guard
from region.broker.security_metrics import SecurityCollector
from region.controller.definition_orders import Ordered
from region.controller.security_book import SecurityBook
from region.security.access import Operation, Principal, Resource
from region.security.definition import Grave, Kind
from region.security.settings import SecuritySection
from region.security.user import User

ANN = Principal(name="User:ann", host="127.0.0.1")


def guard_of(
    users_file: Path | None = None, *, address: str = "127.0.0.1:1", knows_brokers: bool = True, **security: Any
) -> Any:
    book = SecurityBook()
    views = {
        "orders": SimpleNamespace(internal=False, homes=None, name="orders"),
        "__own": SimpleNamespace(internal=True, homes=None, name="__own"),
    }
    controller: Any = SimpleNamespace(state=SimpleNamespace(security=book), catalog=SimpleNamespace(topic=views.get))
    listen = SimpleNamespace(kafka=address, grpc=address, admin=address, peers=address, link=address, text="")
    config: Any = SimpleNamespace(security=SecuritySection(**security), listen=listen, knows_brokers=knows_brokers)
    guard = Guard(config, controller=controller, credentials=Credentials.load(users_file), clock=SystemClock())
    return SimpleNamespace(guard=guard, book=book, controller=controller)


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    write_users_file(tmp_path / "users.json", {"root": "root's own"})
    return tmp_path / "users.json"


def allows(made: Any, name: str = "orders", who: Principal = ANN) -> bool:
    return bool(made.guard.access.allows(who, Operation.READ, Resource.TOPIC, name))


def test_a_mesh_on_loopback_without_users_is_open_until_it_has_one() -> None:
    made = guard_of()
    assert allows(made) and not made.guard.sign_in.required
    made.book.remember(User(name="ann", index=1))
    assert not allows(made) and made.guard.sign_in.required


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"])
def test_off_loopback_nothing_is_open(address: str) -> None:
    assert not allows(guard_of(address=address))


@pytest.mark.parametrize(("security", "outcome"), [({"authorization": "on"}, False), ({"authorization": "off"}, True)])
def test_the_configuration_may_decide_without_looking(security: Any, outcome: bool) -> None:
    assert allows(guard_of(address="10.0.0.1:1", **security)) is outcome
    assert allows(guard_of(**security)) is outcome


def test_users_of_the_file_may_do_everything_unless_super_users_are_named(users_file: Path) -> None:
    root = Principal(name="User:root")
    assert allows(guard_of(users_file), who=root) and not allows(guard_of(users_file))
    named = guard_of(users_file, super_users=["User:ann"])
    assert allows(named) and not allows(named, who=root)
    assert not allows(guard_of(users_file, super_users=[]), who=root)


def test_a_sign_in_may_be_required_before_there_is_a_user() -> None:
    made = guard_of(sign_in="required")
    assert made.guard.sign_in.required and not allows(made)


def test_what_brokers_keep_for_themselves_is_for_super_users(users_file: Path) -> None:
    made = guard_of(users_file)
    assert allows(made, "__own", Principal(name="User:root"))
    assert not allows(made, "__own")


def test_the_metrics_count_what_happened(users_file: Path) -> None:
    made = guard_of(users_file)
    made.guard.access.refusal(ANN, Operation.READ, Resource.TOPIC, "orders")
    made.book.remember(User(name="ann", index=1))
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in SecurityCollector(made.guard, book=lambda: made.book).collect()
        for sample in family.samples
    }
    assert samples["georelay_security_events_total", "denied"] == 1
    assert samples["georelay_security_definitions", "user"] == 1
    assert samples["georelay_authorization_enforced",] == 1


async def test_the_first_user_waits_until_brokers_have_to_prove_who_they_are() -> None:
    wishes: list[Any] = []

    async def change_security(wish: Any, *, by: str) -> None:
        wishes.append((wish["name"], by))

    for knows_brokers in (False, True):
        made = guard_of(knows_brokers=knows_brokers, super_users=["User:ann"])
        made.guard.admin._controller.change_security = change_security
        if knows_brokers:
            await made.guard.admin.add_user(ANN, "ann", "a password")
        else:
            with pytest.raises(PolicyViolation, match="is taken for a broker: set mesh_secret_file"):
                await made.guard.admin.add_user(ANN, "ann", "a password")
    assert wishes == [("ann", "User:ann@127.0.0.1")]


def test_what_this_broker_orders_is_in_its_audit_file(tmp_path: Path) -> None:
    made = guard_of(audit_file=str(tmp_path / "audit"))
    made.controller.security_ordered(Ordered(User(name="ann"), 7, 2001, "User:root@10.0.0.1"))
    made.controller.security_ordered(Ordered(Grave(kind=Kind.USER, key="ann"), 8, 2001, ""))
    made.guard.close()
    rows = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [row.pop("timestamp") for row in rows]
    assert rows == [
        {"event": "security.ordered", "kind": "user", "name": "ann", "change": "defined", "index": 7, "broker": 2001}
        | {"by": "User:root@10.0.0.1"},
        {"event": "security.ordered", "kind": "user", "name": "ann", "change": "deleted", "index": 8, "broker": 2001}
        | {"by": ""},
    ]


@pytest.mark.parametrize("wrong", [{"super_users": ["ann"]}, {"authorization": "maybe"}, {"more": 1}])
def test_a_mistake_in_the_section_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        SecuritySection(**wrong)
