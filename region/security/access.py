"""The question every handler asks before it does anything: may this principal do that?

Rule 1: an answer is for one version of the rules; a change of users or lists forgets every answer.
Rule 2: the client learns that it is not authorized and nothing else; the audit log has what to grant.
Rule 3: super users may do everything; where authorization is off everybody may.
Rule 4: lists are about plain names of topics: `eu.orders` is region eu's stream of `orders`, and whoever may read the
        one may read the other. Topics that brokers keep for themselves are for super users.
Rule 5: ask before looking anything up, so that nobody learns from an error whether it exists.
Rule 6: what is allowed and changes the cluster is noted with its outcome, whichever door it came through: `noted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from georelay.errors import AccessDenied, GeorelayError, OutcomeUnknown
from region.security.acl import CLUSTER_NAME, KAFKA_RESOURCE, OPERATIONS_OF, USER_PREFIX, Operation, Resource
from region.security.acl_core import AclIndex

__all__ = ["CLUSTER_NAME", "Access", "AccessDenied", "AccessRules", "Operation", "Principal", "Resource"]

ANSWERS_REMEMBERED_MAX: Final = 16_384
DONE: Final = "done"
UNKNOWN_OPERATIONS: Final = -(2**31)  # Kafka's default of authorized_operations: not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, and from where: "User:alice" at an IP address.

    The other two say what a sign-in stands on, see SignInService.is_still_valid: a user that the mesh had, and the hash
    of a bearer token.
    """

    name: str
    host: str = ""
    is_user_of_mesh: bool = field(default=False, compare=False)
    token_hash: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of_user(cls, user: str, *, host: str = "") -> Principal:
        """Return the principal of a user's name; "" is who did not have to sign in."""
        return cls(name=USER_PREFIX + (user or "ANONYMOUS"), host=host)

    @property
    def user(self) -> str:
        """Return the name without its type."""
        return self.name.removeprefix(USER_PREFIX)


ANONYMOUS: Final = Principal.of_user("")


class AccessRules(Protocol):
    """What the decision depends on, in one version."""

    @property
    def version(self) -> int:
        """A number that changes with every change of the rules."""

    @property
    def enforced(self) -> bool:
        """Whether anybody but super users needs an ALLOW."""

    @property
    def index(self) -> AclIndex:
        """The lists."""


class _OpenRules:
    version = 0
    enforced = False
    index = AclIndex()


Denied = Callable[[Principal, Operation, Resource, str], None]


def _unheard(principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
    """Drop a denial that nobody writes down."""


class Changed(Protocol):
    """Writes down a change of the cluster (AuditLog.administered)."""

    def __call__(self, principal: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
        """Note what somebody did or tried to."""


def _unnoted(principal: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
    """Drop a change that nobody writes down."""


class Access:
    """Decisions of one broker, remembered until the rules change.

    Args:
        super_users: names of principals ("User:admin") that may do everything.
        denied: told of every denial that `check` or `refusal` made.
        changed: told of every change that was made, or tried, within `noted`.
        plain_topic: the name that lists are about for a topic's name, None: it is for super users only.
    """

    def __init__(
        self,
        rules: AccessRules,
        *,
        super_users: Collection[str] = (),
        denied: Denied = _unheard,
        changed: Changed = _unnoted,
        plain_topic: Callable[[str], str | None] = str,
    ) -> None:
        self._rules = rules
        self._plain_topic = plain_topic
        self._super_users = frozenset(super_users)
        self._denied = denied
        self._changed = changed
        self._version = -1
        self._answers: dict[tuple[str, str, Operation, Resource, str], bool] = {}

    @classmethod
    def open(cls, *, changed: Changed = _unnoted) -> Access:
        """Return the access that allows everything."""
        return cls(_OpenRules(), changed=changed)

    @property
    def enforced(self) -> bool:
        """Return whether anybody but super users needs an ALLOW."""
        return self._rules.enforced

    @property
    def version(self) -> int:
        """Return a number that changes with every change of the rules; for caches of what depends on them."""
        return self._rules.version

    def is_super_user(self, principal: Principal) -> bool:
        """Return whether the principal may do everything."""
        return principal.name in self._super_users

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Return the decision; nobody is told of it."""
        rules = self._rules
        if not rules.enforced or principal.name in self._super_users:
            return True
        if resource is Resource.TOPIC:
            plain = self._plain_topic(name)
            if plain is None:
                return False
            name = plain
        key = (principal.name, principal.host, operation, resource, name)
        answers = self._answers_now(rules)
        known = answers.get(key)
        if known is None:
            known = rules.index.allows(principal.name, principal.host, operation, resource, name)
            self._remember(key, known)
        return known

    def allows_any(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed for at least one name."""
        rules = self._rules
        if not rules.enforced or principal.name in self._super_users:
            return True
        key = (principal.name, principal.host, operation, resource, "")
        known = self._answers_now(rules).get(key)
        if known is None:
            known = rules.index.allows_any(principal.name, principal.host, operation, resource)
            self._remember(key, known)
        return known

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Pass, or raise.

        Raises:
            AccessDenied: the audit log says what to grant.
        """
        refusal = self.refusal(principal, operation, resource, name)
        if refusal is not None:
            raise refusal

    def check_any(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        """Pass if the operation is allowed for at least one name, else raise AccessDenied."""
        if not self.allows_any(principal, operation, resource):
            self._denied(principal, operation, resource, "")
            raise AccessDenied.to(resource.value)

    def refusal(
        self, principal: Principal, operation: Operation, resource: Resource, name: str = CLUSTER_NAME
    ) -> AccessDenied | None:
        """Return the error to answer with, None when it is allowed; for handlers that go on with other items."""
        if self.allows(principal, operation, resource, name):
            return None
        plain = self._plain_topic(name) if resource is Resource.TOPIC else name
        self._denied(principal, operation, resource, name if plain is None else plain)
        return AccessDenied.to(resource.value)

    def may_create_topic(self, principal: Principal, name: str) -> bool:
        """Return whether the topic may be created: CREATE on it, or on the cluster."""
        return self.allows(principal, Operation.CREATE, Resource.CLUSTER) or self.allows(
            principal, Operation.CREATE, Resource.TOPIC, name
        )

    def check_create_topic(self, principal: Principal, name: str) -> None:
        """Pass, or raise AccessDenied for the topic."""
        if not self.may_create_topic(principal, name):
            self.check(principal, Operation.CREATE, Resource.TOPIC, name)

    def share_of(self, principal: Principal) -> str:
        """Return who pays for what the principal creates; "" where nobody signs in, and for administrators."""
        is_free = not self.enforced or self.allows(principal, Operation.ALTER, Resource.CLUSTER)
        return "" if is_free else principal.name

    @contextmanager
    def noted(self, principal: Principal, what: str, **detail: str) -> Iterator[None]:
        """Note the change that the body makes, with its outcome: "done" or the code of the error, which goes on.

        A body that is cancelled (its client has gone) may have changed something: OUTCOME_UNKNOWN.

        Args:
            what: "topic.created". detail: names and wanted values, no secrets.
        """
        outcome = GeorelayError.code
        try:
            yield
            outcome = DONE
        except GeorelayError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = OutcomeUnknown.code
            raise
        finally:
            self.note(principal, what, outcome=outcome, **detail)

    def note(self, principal: Principal, what: str, *, outcome: str, **detail: str) -> None:
        """Note a change whose outcome is no exception; `outcome` is "done" or a code."""
        self._changed(principal, what, outcome=outcome, **detail)

    def authorized_operations(self, principal: Principal, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """Return what the principal may do as the bits of Kafka's authorized_operations (KIP-430)."""
        bits = 0
        for operation in OPERATIONS_OF[resource]:
            if self.allows(principal, operation, resource, name):
                bits |= 1 << operation.value
        return bits

    def _answers_now(self, rules: AccessRules) -> dict[tuple[str, str, Operation, Resource, str], bool]:
        if rules.version != self._version:
            self._answers.clear()
            self._version = rules.version
        return self._answers

    def _remember(self, key: tuple[str, str, Operation, Resource, str], answer: bool) -> None:
        if len(self._answers) >= ANSWERS_REMEMBERED_MAX:
            self._answers.clear()
        self._answers[key] = answer


def kafka_resource(resource: Resource) -> int | None:
    """Return Kafka's code of a resource, None for what Kafka does not have."""
    return KAFKA_RESOURCE.get(resource)
