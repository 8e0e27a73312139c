"""What keeps a broker: sign-in, access, quotas, audit, and the administration of all four, made from their parts."""

from __future__ import annotations

from pathlib import Path

from georelay.clock import Clock
from georelay.credentials import Credentials
from mesh.listening.settings import is_loopback
from region.config import BROKER_LISTENERS, CLIENT_LISTENERS, BrokerConfig, split_address
from region.controller.security_book import SecurityBook
from region.controller.service import ControllerService
from region.kafka.services import plain_name
from region.security.access import Access
from region.security.acl import USER_PREFIX
from region.security.administration import SecurityAdmin
from region.security.audit import AuditLog
from region.security.audit_events_core import KeptEvents
from region.security.quotas import Quotas
from region.security.rules import BookRules
from region.security.sign_in import SignInService


class Guard:
    """The security of one broker; every listener has the same. `kept`: remembers the audit log for the API."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        controller: ControllerService,
        credentials: Credentials,
        clock: Clock,
        kept: KeptEvents | None = None,
    ) -> None:
        settings = config.security

        def book() -> SecurityBook:
            return controller.state.security

        def wall_s() -> float:
            return clock.wall_ns() / 1e9

        def monotonic_s() -> float:
            return clock.monotonic_ns() / 1e9

        def plain_topic(name: str) -> str | None:
            view = controller.catalog.topic(name)
            if view is None:
                return name
            return None if view.internal else plain_name(view)

        audit_file = Path(settings.audit_file) if settings.audit_file else None
        self.audit = AuditLog(audit_file, kept=kept, wall_s=wall_s, monotonic_s=monotonic_s)
        self.sign_in = SignInService(
            credentials,
            book=book,
            always=settings.sign_in_needed,
            refusals=self.audit,
            wall_s=wall_s,
            monotonic_s=monotonic_s,
        )
        rules = BookRules(
            book=book,
            authorization=settings.authorization,
            sign_in_needed=lambda: self.sign_in.required,
            is_loopback_only=listens_on_loopback_only(config),
        )
        self.access = Access(
            rules,
            super_users=super_users(config, credentials),
            denied=self.audit.denied,
            changed=self.audit.administered,
            plain_topic=plain_topic,
        )
        self.quotas = Quotas(book=book, monotonic_s=monotonic_s)
        self.admin = SecurityAdmin(
            controller=controller,
            book=book,
            access=self.access,
            audit=self.audit,
            sign_in_needed=lambda: self.sign_in.required,
            knows_brokers=config.knows_brokers,
            wall_s=wall_s,
        )
        controller.security_ordered = self.audit.ordered

    def close(self) -> None:
        """Close the audit file."""
        self.audit.close()


def super_users(config: BrokerConfig, credentials: Credentials) -> frozenset[str]:
    """Return who may do everything: those of the configuration; where it names none, the users of the users file.

    A mesh of the first versions knew such users only, and each of them could do everything.
    """
    named = config.security.super_users
    if named is not None:
        return frozenset(named)
    return frozenset(USER_PREFIX + name for name in credentials.names)


def listens_on_loopback_only(config: BrokerConfig) -> bool:
    """Return whether no listener of a broker can be reached from another machine."""
    addresses = [getattr(config.listen, name, "") for name in (*CLIENT_LISTENERS, *BROKER_LISTENERS)]
    return all(is_loopback(split_address(address)[0]) for address in addresses if address)
