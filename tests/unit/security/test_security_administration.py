"""Changes by administrators: what is noted of them, and of those that somebody without the right asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from georelay.errors import AccessDenied, GeorelayError, PolicyViolation
from georelay.ids import BrokerId
from region.security.access import Access, Principal
from region.security.acl import AclEntry, Operation, Resource, ResourcePattern
from region.security.administration import SecurityAdmin
from region.security.audit import AuditLog
from region.security.audit_events_core import EVENTS_MAX, EventsAsked, KeptEvents
from region.security.rules import Authorization, BookRules

ROOT = Principal(name="User:root", host="10.0.0.1")
EVE = Principal(name="User:eve", host="10.0.0.9")
BINDINGS = [
    (ResourcePattern(resource=Resource.TOPIC, name="x"), AclEntry(principal="User:eve", operation=Operation.READ))
]

Change = Callable[[SecurityAdmin, Principal], Awaitable[Any]]
CHANGES: dict[str, Change] = {
    "user.added": lambda admin, who: admin.add_user(who, "bob", "correct horse"),
    "user.changed": lambda admin, who: admin.change_user(who, "ann", is_enabled=False),
    "user.keys_changed": lambda admin, who: admin.put_keys(who, "ann", []),
    "user.deleted": lambda admin, who: admin.delete_user(who, "ann"),
    "token.added": lambda admin, who: admin.add_token(who, "ann", "t", days=1),
    "token.deleted": lambda admin, who: admin.delete_token(who, "ann", "t"),
    "acls.added": lambda admin, who: admin.add_acls(who, BINDINGS),
    "acls.removed": lambda admin, who: admin.remove_acls(who, BINDINGS),
    "quota.changed": lambda admin, who: admin.set_quota(who, "User:ann", fetch_bytes_per_s=5),
}


class Administered:
    """A broker with the user ann, whose lists are enforced; `root` may do everything."""

    def __init__(self, home: Any) -> None:
        home.add_user("ann")
        self._home = home
        self.kept = KeptEvents(BrokerId(1001))
        self.now_s = 0.0
        self.audit = AuditLog(kept=self.kept, wall_s=lambda: 1_700_000_000.0, monotonic_s=lambda: self.now_s)
        rules = BookRules(book=lambda: home.book, authorization=Authorization.ON)
        self.access = Access(rules, super_users={"User:root"}, denied=self.audit.denied)
        self.error: GeorelayError | None = None
        self.admin = SecurityAdmin(
            controller=self,
            book=lambda: home.book,
            access=self.access,
            audit=self.audit,
            sign_in_needed=lambda: True,
            knows_brokers=True,
        )

    async def change_security(self, wish: dict[str, object], *, by: str) -> None:
        if self.error is not None:
            raise self.error
        self._home.wish(wish)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        return [row.to_json() for row in self.kept.page(EventsAsked(event=name)).rows]


@pytest.fixture
def administered(home: Any) -> Administered:
    return Administered(home)


@pytest.mark.parametrize("what", CHANGES)
async def test_what_somebody_may_not_change_is_noted_once_as_a_denial_and_as_no_change(
    administered: Administered, what: str
) -> None:
    with pytest.raises(AccessDenied):
        await CHANGES[what](administered.admin, EVE)
    (event,) = administered.events()
    assert (event["event"], event["principal"], event["count"]) == ("access.denied", "User:eve", 1)
    assert event["grant"].endswith("--principal User:eve --operation alter --resource cluster")
    assert (administered.audit.denials, administered.audit.changes) == (1, 0)


async def test_changes_that_are_denied_push_no_change_out(administered: Administered) -> None:
    await CHANGES["quota.changed"](administered.admin, ROOT)
    for _ in range(EVENTS_MAX + 1):
        with pytest.raises(AccessDenied):
            await CHANGES["user.deleted"](administered.admin, EVE)
    administered.now_s = 10.0
    with pytest.raises(AccessDenied):
        await CHANGES["user.deleted"](administered.admin, EVE)
    assert [event["what"] for event in administered.events("security.changed")] == ["quota.changed"]
    assert [event["count"] for event in administered.events("access.denied")] == [EVENTS_MAX + 1, 1]


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_of_who_may_is_noted_with_its_outcome_also_when_it_is_refused(
    administered: Administered, what: str
) -> None:
    administered.error = PolicyViolation("no")
    with pytest.raises(PolicyViolation):
        await CHANGES[what](administered.admin, ROOT)
    (event,) = administered.events()
    assert (event["event"], event["what"], event["outcome"]) == ("security.changed", what, "POLICY_VIOLATION")
