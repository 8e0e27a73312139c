"""A book of definitions, filled by wishes as the definitions home fulfils them, and clocks that only tests move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from region.controller import security_wishes
from region.controller.security_book import SecurityBook
from region.security.acl import AclEntry, Operation, Pattern, Permission, Resource, ResourcePattern
from region.security.definition import Secret
from region.security.scram_core import make_key
from region.security.user import ITERATIONS_MIN, Mechanism


class Home:
    """The definitions home, without brokers."""

    def __init__(self) -> None:
        self.book = SecurityBook()
        self.book.remember(Secret(value=bytes(range(32)), index=1))
        self.wall_s = 1_700_000_000.0
        self.monotonic_s = 50.0

    def wish(self, wish: dict[str, object]) -> int:
        """Fulfil a wish; return how many definitions it took."""
        planned = security_wishes.plan(self.book, wish)
        for definition in planned:
            self.book.remember(replace(definition, index=self.book.index + 1))
        return len(planned)

    def add_user(self, name: str, password: str = "correct horse", **changes: Any) -> None:
        """Make a user with keys of the fewest iterations that are allowed."""
        keys = [
            make_key(mechanism, password, salt=f"salt of {name:>12}".encode()[:16], iterations=ITERATIONS_MIN)
            for mechanism in sorted(Mechanism)
        ]
        self.wish(security_wishes.put_user(name, keys=keys, **changes))

    def allow(
        self,
        principal: str,
        operation: Operation,
        resource: Resource,
        name: str,
        *,
        pattern: Pattern = Pattern.LITERAL,
        permission: Permission = Permission.ALLOW,
        host: str = "*",
    ) -> None:
        """Add one entry."""
        entry = AclEntry(principal=principal, operation=operation, permission=permission, host=host)
        self.wish(security_wishes.add_acls([(ResourcePattern(resource=resource, name=name, pattern=pattern), entry)]))


@pytest.fixture
def home() -> Home:
    return Home()
