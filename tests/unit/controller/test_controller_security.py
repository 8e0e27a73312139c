"""Users, lists and quotas as definitions: ordered at home, pulled by other regions, whatever version those are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from georelay import limits
from georelay.errors import BadRequest, Busy, HomeUnreachable, OutcomeUnknown, PolicyViolation
from georelay.fields import Fields, JsonObject
from georelay.ids import RaftIndex
from region.controller import security_pull, security_rules, security_wishes
from region.controller.commands import DefineSecurity, DefineTopic, FormRegion, RaiseFeatureLevel, decode, encode
from region.controller.definition_orders import Ordered, SecurityOrders
from region.controller.security_book import SecurityBook
from region.controller.security_definitions import SecurityDefinitions
from region.controller.security_wishes import add_acls, delete_user, put_quota, put_token, put_user, remove_acls
from region.controller.state_core import ControllerState, Done, Refused
from region.controller.topic import TopicSpec
from region.security.acl import AclEntry, Operation, Pattern, Permission, Resource, ResourcePattern
from region.security.definition import AclList, Grave, Kind, Quota, Secret
from region.security.scram_core import make_key
from region.security.user import BearerToken, Mechanism, User

Make = Callable[..., Any]
LEVEL_3 = dict.fromkeys((1001, 1002, 2001, 2002), 3)
US_LEADER, US_FOLLOWER, EU_LEADER, EU_FOLLOWER = 1001, 1002, 2001, 2002
KEY = make_key(Mechanism.SCRAM_SHA_256, "pw", salt=b"0123456789abcdef", iterations=4096)
ORDERS = ResourcePattern(resource=Resource.TOPIC, name="orders")
READ = AclEntry(principal="User:ann", operation=Operation.READ)
WRITE = AclEntry(principal="User:ann", operation=Operation.WRITE)


@pytest.fixture
async def mesh(mesh_of: Make) -> Any:
    mesh = await mesh_of(levels=LEVEL_3)
    await mesh.until(lambda: all(service.feature_level == 3 for service in mesh.services.values()))
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    return mesh


@pytest.fixture
def formed(topology: Make) -> ControllerState:
    state = ControllerState()
    state.apply(FormRegion(topology=topology(1)), RaftIndex(1))
    state.apply(RaiseFeatureLevel(level=2), RaftIndex(2))
    state.apply(RaiseFeatureLevel(level=3), RaftIndex(3))
    return state


def apply(state: ControllerState, command: Any) -> Any:
    state.apply(command, RaftIndex(state.applied_index + 1))
    return state.outcome(state.applied_index)


def book_with(*wishes: JsonObject) -> SecurityBook:
    book = SecurityBook()
    for wish in wishes:
        fulfil(book, wish)
    return book


def fulfil(book: SecurityBook, wish: JsonObject) -> int:
    planned = security_wishes.plan(book, wish)
    for definition in planned:
        book.remember(replace(definition, index=book.index + 1))
    return len(planned)


# --- the mesh ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", [US_LEADER, US_FOLLOWER, EU_LEADER, EU_FOLLOWER])
async def test_a_user_is_added_through_any_broker_and_known_there_at_once(mesh: Any, broker: int) -> None:
    service = mesh.services[broker]
    await service.change_security(put_user("ann", keys=[KEY]))
    assert service.state.security.user("ann").keys == (KEY,)
    await mesh.until(lambda: all(s.state.security.user("ann") for s in mesh.services.values()))
    assert len({s.state.security.user("ann").index for s in mesh.services.values()}) == 1
    assert len({s.state.security.secret() for s in mesh.services.values()}) == 1


async def test_a_deletion_reaches_every_region(mesh: Any) -> None:
    await mesh.services[US_LEADER].change_security(put_user("ann", keys=[KEY]))
    await mesh.services[EU_FOLLOWER].change_security(delete_user("ann"))
    await mesh.until(lambda: all(s.state.security.user("ann") is None for s in mesh.services.values()))
    with pytest.raises(PolicyViolation, match="there is no user ann"):
        await mesh.services[EU_FOLLOWER].change_security(delete_user("ann"))


async def test_nothing_changes_while_the_definitions_home_is_unreachable(mesh: Any) -> None:
    mesh.cut = {1}
    with pytest.raises(HomeUnreachable):
        await mesh.services[EU_LEADER].change_security(put_user("ann", keys=[KEY]))
    assert mesh.services[US_LEADER].state.security.user("ann") is None


async def test_topics_and_users_share_one_sequence_and_a_region_catches_up_with_both(mesh: Any) -> None:
    mesh.cut = {2}
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="t0"))
    await mesh.services[US_LEADER].change_security(put_user("ann", keys=[KEY]))  # the secret and the user
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="t1"))
    await mesh.services[US_LEADER].change_security(add_acls([(ORDERS, READ)]))
    state = mesh.services[US_LEADER].state
    assert (state.definitions_index, state.security.index) == (4, 5)
    mesh.cut = set()
    await mesh.until(lambda: mesh.services[EU_FOLLOWER].state.security.index == 5)
    await mesh.until(lambda: mesh.services[EU_FOLLOWER].state.definitions_index == 4)


async def test_a_region_of_the_second_level_pulls_topics_and_later_catches_up_with_users(mesh_of: Make) -> None:
    mesh = await mesh_of(levels={1001: 3, 1002: 3, 2001: 2, 2002: 2})
    await mesh.until(lambda: mesh.services[US_LEADER].feature_level == 3)
    await mesh.until(lambda: mesh.services[EU_LEADER].feature_level == 2)
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    await mesh.services[US_LEADER].change_security(put_user("ann", keys=[KEY]))
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="orders"))
    # Its pull moves on beyond the index of the user that it cannot read.
    await mesh.until(lambda: mesh.services[EU_FOLLOWER].catalog.topic("orders") is not None)
    assert mesh.services[EU_LEADER].state.security.index == 0
    with pytest.raises(PolicyViolation, match="upgrade"):  # and it does not break on what it must not write
        await mesh.services[EU_LEADER]._commit(DefineSecurity(definition=User(name="eve", index=99)))
    await mesh.services[EU_LEADER]._commit(RaiseFeatureLevel(level=3))
    await mesh.until(lambda: mesh.services[EU_FOLLOWER].state.security.user("ann") is not None)


async def test_a_definitions_home_of_the_second_level_refuses_and_its_answers_are_read(mesh_of: Make) -> None:
    mesh = await mesh_of(levels={1001: 2, 1002: 2, 2001: 3, 2002: 3})
    await mesh.until(lambda: mesh.services[EU_LEADER].feature_level == 3)
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    with pytest.raises(PolicyViolation, match="upgrade"):
        await mesh.services[EU_LEADER].change_security(put_user("ann", keys=[KEY]))
    await mesh.services[EU_LEADER].create_topic(TopicSpec(name="orders"))


async def test_a_deletion_that_was_done_and_not_answered_is_never_called_not_done(mesh: Any) -> None:
    await mesh.services[US_LEADER].change_security(put_user("ann", keys=[KEY]))
    mesh.lose_answers = 1
    with pytest.raises(OutcomeUnknown, match=r"it may be done.*there is no user ann"):
        await mesh.services[US_FOLLOWER].change_security(delete_user("ann"))
    assert mesh.services[US_LEADER].state.security.user("ann") is None


async def test_of_several_lists_of_which_one_was_changed_nobody_says_that_nothing_was_done(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = mesh.services[US_LEADER]
    propose, before = leader._propose, leader.state.security.index

    async def propose_one(command: bytes) -> RaftIndex:
        index: RaftIndex = await propose(command)
        mesh.leaders[1] = 0
        return index

    monkeypatch.setattr(leader, "_propose", propose_one)
    with pytest.raises(OutcomeUnknown, match="1 definitions were changed"):
        await leader.change_security(add_acls([(ORDERS, READ), (replace(ORDERS, name="others"), READ)]))
    assert leader.state.security.index == before + 1


async def test_a_wish_whose_answer_was_lost_is_fulfilled_once(mesh: Any) -> None:
    await mesh.services[US_LEADER].change_security(put_user("ann", keys=[KEY]))
    before = mesh.services[US_LEADER].state.security.index
    await mesh.services[US_LEADER].change_security(put_user("ann", keys=[KEY]))
    assert mesh.services[US_LEADER].state.security.index == before


async def test_who_orders_a_change_says_so_whatever_way_it_came(mesh: Any) -> None:
    noted: dict[int, list[Any]] = {broker: [] for broker in mesh.services}
    for broker, service in mesh.services.items():
        service.security_ordered = noted[broker].append
    await mesh.services[EU_FOLLOWER].change_security(put_user("ann", keys=[KEY]), by="User:root@10.0.0.1")
    assert [(row.definition.key, row.by) for row in noted[US_LEADER]] == [("ann", "User:root@10.0.0.1")]
    # A broker that wishes by itself, or one of an earlier version, names nobody: it is written down all the same.
    await mesh.services[US_LEADER].handle("security.change", {"wish": delete_user("ann"), "hops": 0})
    assert [(row.definition, row.by) for row in noted[US_LEADER][1:]] == [(Grave(kind=Kind.USER, key="ann"), "")]
    assert not any(rows for broker, rows in noted.items() if broker != US_LEADER)


async def test_mesh_control_says_which_broker_asked_for_a_change(formed: ControllerState) -> None:
    async def commit(command: Any) -> Done:
        outcome = apply(formed, command)
        assert isinstance(outcome, Done)
        return outcome

    noted: list[Ordered] = []
    orders = SecurityOrders(books=formed, commit=commit, ordered=lambda _: None, noted=noted.append)
    await orders.change({"wish": put_user("ann", keys=[KEY]), "by": "User:root@10.0.0.1"}, 2001)
    assert [(row.definition.key, row.asker, row.by) for row in noted] == [("ann", 2001, "User:root@10.0.0.1")]
    await orders.change({"wish": put_user("ann", keys=[KEY])}, 2001)
    assert len(noted) == 1  # nothing changed


async def test_a_short_salt_waits_until_every_region_can_read_it(formed: ControllerState) -> None:
    async def commit(command: Any) -> Done:
        outcome = apply(formed, command)
        assert isinstance(outcome, Done)
        return outcome

    older = ["eu"]
    orders = SecurityOrders(books=formed, commit=commit, ordered=lambda _: None, older_regions=lambda _: older)
    short = make_key(Mechanism.SCRAM_SHA_256, "pw", salt=b"salt", iterations=4096)
    await orders.change({"wish": put_user("bob", keys=[KEY])})
    with pytest.raises(PolicyViolation, match="eu did not say so"):
        await orders.change({"wish": put_user("ann", keys=[short])})
    assert formed.security.user("ann") is None
    older.clear()
    await orders.change({"wish": put_user("ann", keys=[short])})
    found = formed.security.user("ann")
    assert found is not None and User.from_json(found.to_json()).keys == (short,)


async def test_two_administrators_do_not_undo_each_others_work(
    formed: ControllerState, topology: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def commit(command: Any) -> Done:
        if isinstance(command.definition, AclList) and command.definition.entries == (READ,) and not interrupted:
            interrupted.append(True)  # another administrator's entry is ordered while ours is on its way
            apply(formed, DefineSecurity(definition=AclList(pattern=ORDERS, entries=(WRITE,))))
        outcome = apply(formed, command)
        if isinstance(outcome, Refused):
            raise outcome.error(outcome.text)
        assert isinstance(outcome, Done)
        return outcome

    async def applied(_: int) -> None:
        return

    interrupted: list[bool] = []
    ordered: list[int] = []
    definitions = SecurityDefinitions(
        state=formed,
        topology=lambda: topology(1),
        route=cast("Any", None),  # nothing is asked here
        commit=commit,
        ordered=ordered.append,
        noted=lambda ordered: None,
        applied=applied,
    )
    await definitions.serve_change({"wish": add_acls([(ORDERS, READ)])})
    (acls,) = formed.security.acls()
    assert set(acls.entries) == {READ, WRITE}
    assert ordered == [2]


# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_definition_made_from_an_older_one_is_refused(formed: ControllerState) -> None:
    assert isinstance(apply(formed, DefineSecurity(definition=User(name="ann"))), Done)
    outcome = apply(formed, DefineSecurity(definition=User(name="ann", is_enabled=False)))
    assert isinstance(outcome, Refused) and outcome.error is Busy
    done = apply(formed, DefineSecurity(definition=User(name="ann", is_enabled=False), replaces=1))
    assert isinstance(done, Done) and done.definition_index == 2


def test_pulled_definitions_apply_in_order_only(formed: ControllerState) -> None:
    for index in (7, 3, 7):
        apply(formed, DefineSecurity(definition=User(name="ann", expires_s=index, index=index)))
    user = formed.security.user("ann")
    assert user is not None and user.expires_s == 7


@pytest.mark.parametrize("level", [1, 2])
def test_nothing_is_ordered_below_level_three(topology: Make, level: int) -> None:
    state = ControllerState()
    state.apply(FormRegion(topology=topology(1)), RaftIndex(1))
    if level == 2:
        apply(state, RaiseFeatureLevel(level=2))
    outcome = apply(state, DefineSecurity(definition=User(name="ann")))
    assert isinstance(outcome, Refused) and outcome.error is PolicyViolation


def test_a_region_that_is_not_home_orders_nothing(topology: Make) -> None:
    state = ControllerState()
    state.apply(FormRegion(topology=topology(2)), RaftIndex(1))
    apply(state, RaiseFeatureLevel(level=2))
    apply(state, RaiseFeatureLevel(level=3))
    outcome = apply(state, DefineSecurity(definition=User(name="ann")))
    assert isinstance(outcome, Refused) and "definitions home" in outcome.text


@pytest.mark.parametrize(
    ("limit", "definitions"),
    [
        ("USERS_MAX", [User(name="a"), User(name="b"), User(name="c")]),
        ("QUOTAS_MAX", [Quota(principal=f"User:{n}", produce_bytes_per_s=1) for n in "abc"]),
        (
            "ACL_ENTRIES_MAX",
            [
                AclList(pattern=replace(ORDERS, name=name), entries=(replace(READ, principal=f"User:{name}"),))
                for name in "abc"
            ],
        ),
    ],
)
def test_everything_is_bounded_and_says_so(
    formed: ControllerState, monkeypatch: pytest.MonkeyPatch, limit: str, definitions: list[Any]
) -> None:
    monkeypatch.setattr(security_rules, limit, 2)
    outcomes = [apply(formed, DefineSecurity(definition=definition)) for definition in definitions]
    assert [isinstance(outcome, Done) for outcome in outcomes] == [True, True, False]
    assert "maximum" in outcomes[2].text


def test_graves_are_bounded_too(formed: ControllerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_rules, "SECURITY_GRAVES_MAX", 1)
    for place, name in enumerate("ab"):
        apply(formed, DefineSecurity(definition=User(name=name)))
        outcome = apply(
            formed, DefineSecurity(definition=Grave(kind=Kind.USER, key=name), replaces=formed.security.index)
        )
        assert isinstance(outcome, Done) is (place == 0)


def test_a_snapshot_brings_everything_and_its_counts(formed: ControllerState) -> None:
    apply(formed, DefineSecurity(definition=Secret(value=bytes(32))))
    apply(formed, DefineSecurity(definition=User(name="ann", keys=(KEY,))))
    apply(formed, DefineSecurity(definition=AclList(pattern=ORDERS, entries=(READ,))))
    apply(formed, DefineSecurity(definition=User(name="bob")))
    apply(formed, DefineSecurity(definition=Grave(kind=Kind.USER, key="bob"), replaces=4))
    raw = formed.to_snapshot()
    again = ControllerState.from_snapshot(raw)
    assert again.to_snapshot() == raw
    book = again.security
    assert (book.index, book.entry_count, book.grave_count, book.count(Kind.USER)) == (5, 1, 1, 1)


def test_the_snapshot_of_a_region_without_users_has_nothing_that_older_versions_do_not_read(
    formed: ControllerState,
) -> None:
    assert b"security" not in formed.to_snapshot()


def test_topics_go_on_above_the_indexes_of_users(formed: ControllerState, definition: Make) -> None:
    apply(formed, DefineSecurity(definition=User(name="ann")))
    apply(formed, DefineTopic(definition=definition()))
    assert (formed.security.index, formed.definitions_index) == (1, 2)


# --- wishes -----------------------------------------------------------------------------------------------------------


def test_a_new_user_must_be_new_and_a_changed_one_must_be_there() -> None:
    book = book_with(put_user("ann", keys=[KEY], is_new=True))
    with pytest.raises(PolicyViolation, match="is there already"):
        security_wishes.plan(book, put_user("ann", is_new=True))
    with pytest.raises(PolicyViolation, match="there is no user bob"):
        security_wishes.plan(book, put_user("bob", is_enabled=False, is_new=False))


def test_the_same_wish_for_a_new_user_twice_is_one_user() -> None:
    wish = put_user("ann", keys=[KEY], is_new=True)
    assert security_wishes.plan(book_with(wish), wish) == []


def test_what_is_not_named_of_a_user_stays() -> None:
    book = book_with(put_user("ann", keys=[KEY], expires_s=99), put_user("ann", is_enabled=False))
    user = book.user("ann")
    assert user is not None
    assert (user.keys, user.expires_s, user.is_enabled) == ((KEY,), 99, False)


def test_keys_are_replaced_by_mechanism_and_taken_away() -> None:
    other = make_key(Mechanism.SCRAM_SHA_512, "pw", salt=b"0123456789abcdef", iterations=4096)
    newer = replace(KEY, iterations=5000)
    book = book_with(put_user("ann", keys=[KEY]), put_user("ann", keys=[other]), put_user("ann", keys=[newer]))
    user = book.user("ann")
    assert user is not None and user.keys == (newer, other)
    fulfil(book, put_user("ann", without=[Mechanism.SCRAM_SHA_256]))
    user = book.user("ann")
    assert user is not None and user.keys == (other,)


def test_tokens_are_replaced_by_name_and_bounded() -> None:
    book = book_with(put_user("ann"))
    for number in range(8):
        fulfil(book, put_token("ann", BearerToken(name=f"t{number}", hash=bytes(32), expires_s=1)))
    fulfil(book, put_token("ann", BearerToken(name="t3", hash=bytes([1]) * 32, expires_s=2)))
    with pytest.raises(PolicyViolation, match="8 tokens"):
        security_wishes.plan(book, put_token("ann", BearerToken(name="t9", hash=bytes(32), expires_s=1)))
    fulfil(book, security_wishes.delete_token("ann", "t0"))
    user = book.user("ann")
    assert user is not None and [token.name for token in user.tokens] == [f"t{n}" for n in range(1, 8)]


def test_entries_are_added_and_removed_as_a_set() -> None:
    book = book_with(add_acls([(ORDERS, READ), (ORDERS, WRITE)]), add_acls([(ORDERS, READ)]))
    (acls,) = book.acls()
    assert acls.entries == (READ, WRITE)
    assert fulfil(book, remove_acls([(ORDERS, WRITE)])) == 1
    assert fulfil(book, remove_acls([(ORDERS, WRITE)])) == 0
    assert fulfil(book, remove_acls([(ORDERS, READ)])) == 1
    assert list(book.acls()) == [] and book.grave_count == 1


def test_a_list_is_bounded() -> None:
    entries = [(ORDERS, replace(READ, principal=f"User:u{number}")) for number in range(201)]
    with pytest.raises(PolicyViolation, match="over 200"):
        security_wishes.plan(SecurityBook(), add_acls(entries))


def test_a_quota_without_limits_is_gone() -> None:
    book = book_with(put_quota("User:ann", produce_bytes_per_s=5, fetch_bytes_per_s=7))
    fulfil(book, put_quota("User:ann", produce_bytes_per_s=0))
    assert book.quota("User:ann") == Quota(principal="User:ann", fetch_bytes_per_s=7, index=2)
    fulfil(book, put_quota("User:ann", fetch_bytes_per_s=0))
    assert book.quota("User:ann") is None


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"wish": "nothing"},
        {"wish": "put_user", "name": "a:b", "keys": [], "without": []},
        {"wish": "put_user", "name": "*", "keys": [], "without": []},
        {"wish": "put_user", "name": "ann", "keys": [], "without": [], "more": 1},
        {"wish": "put_user", "name": "ann", "keys": [{**KEY.to_json(), "iterations": 4095}], "without": []},
        {"wish": "put_user", "name": "ann", "keys": [{**KEY.to_json(), "stored_key": "00"}], "without": []},
        {"wish": "put_quota", "principal": "ann", "produce_bytes_per_s": 1},
        {"wish": "put_quota", "principal": "User:ann", "produce_bytes_per_s": -1},
        {"wish": "add_acls", "bindings": [{"resource": "topic"}]},
        {
            "wish": "add_acls",
            "bindings": [
                security_wishes.binding_to_json(replace(ORDERS, resource=Resource.GROUP), WRITE)  # no such operation
            ],
        },
        {
            "wish": "add_acls",
            "bindings": [
                security_wishes.binding_to_json(ResourcePattern(resource=Resource.CLUSTER, name="other"), READ)
            ],
        },
        {
            "wish": "add_acls",
            "bindings": [security_wishes.binding_to_json(replace(ORDERS, name="*", pattern=Pattern.PREFIXED), READ)],
        },
        {"wish": "add_acls", "bindings": [security_wishes.binding_to_json(ORDERS, replace(READ, host="nowhere"))]},
    ],
)
def test_a_wish_that_means_nothing_is_refused(wish: JsonObject) -> None:
    with pytest.raises(BadRequest):
        security_wishes.plan(SecurityBook(), wish)


def test_hosts_are_written_in_one_way() -> None:
    book = book_with(add_acls([(ORDERS, replace(READ, host="2001:DB8:0:0::1", permission=Permission.DENY))]))
    assert next(book.acls()).entries[0].host == "2001:db8::1"


# --- pulling ----------------------------------------------------------------------------------------------------------


async def test_an_answer_is_bounded_in_bytes_and_the_rest_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_pull, "PULL_BYTES_MAX", 300)
    book = book_with(*(put_user(f"user-{number}", keys=[KEY]) for number in range(5)))
    taken: list[Any] = []

    async def commit(command: Any) -> Done:
        taken.append(decode(encode(command)))
        return Done()

    since, pulls, has_more = 0, 0, True
    while has_more:
        answer = security_pull.give(book, Fields({"security_since": since}, "since"))
        has_more = await security_pull.take(answer, since, commit)
        since, pulls = taken[-1].definition.index, pulls + 1
    assert [command.definition for command in taken] == list(book.everything())
    assert pulls == 5


@pytest.mark.parametrize(
    "answer",
    [
        {"security": [{"user": {}}], "security_more": False},
        {"security": [{"grave": {"kind": "user", "key": "a", "index": 3}}], "security_more": False},
        {"security": 7, "security_more": False},
        {"security": []},
    ],
)
async def test_an_answer_that_is_none_is_refused(answer: JsonObject) -> None:
    async def commit(_: Any) -> Done:
        raise AssertionError

    with pytest.raises(BadRequest):
        await security_pull.take(answer, 3, commit)


def test_all_limits_together_fit_into_a_snapshot() -> None:
    user = User(
        name="x" * 128,
        keys=tuple(make_key(mechanism, "pw", salt=bytes(16), iterations=4096) for mechanism in sorted(Mechanism)),
        tokens=tuple(BearerToken(name=f"t{n}" + "x" * 20, hash=bytes(32), expires_s=2**40) for n in range(8)),
        index=2**40,
    )
    entry = AclEntry(principal="User:" + "x" * 64, operation=Operation.DESCRIBE_CONFIGS, host="255.255.255.255")
    from georelay.fields import dump_object
    from region.controller.state_snapshot import SNAPSHOT_BYTES_MAX
    from region.security import definition

    a_user = len(dump_object(definition.to_json(user)))
    an_entry = len(dump_object(definition.entry_to_json(entry)))
    needed = limits.USERS_MAX * a_user + limits.ACL_ENTRIES_MAX * an_entry + limits.SECURITY_GRAVES_MAX * 200
    assert needed + 25 * limits.MIB < SNAPSHOT_BYTES_MAX
