"""Users, lists and quotas for administrators: the one door behind HTTP, gRPC and the Kafka protocol.

Rule 1: seeing needs DESCRIBE on the cluster, changing ALTER; users may see themselves and change their own tokens.
Rule 2: every change that somebody asked for who may is in the audit log, with its outcome; never with a secret. Who may
        not is in it as a denial (Access.check): denials that repeat are counted together and have a room of their own.
Rule 3: nobody locks everybody out by a first step: the first user must be able to administer.
Rule 4: nor does it pretend: there is no first user while whoever connects may say that it is a broker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from georelay.errors import GeorelayError, PolicyViolation
from georelay.fields import JsonObject
from region.controller import security_wishes as wishes
from region.controller.security_book import SecurityBook
from region.security.access import Access, Operation, Principal, Resource
from region.security.acl import CLUSTER_NAME, USER_PREFIX, AclEntry, ResourcePattern
from region.security.acl_core import AclIndex
from region.security.audit import AuditLog
from region.security.definition import AclList, Quota
from region.security.scram_core import ITERATIONS, make_key
from region.security.settings import STRANGERS
from region.security.sign_in import hash_token, new_token
from region.security.user import SALT_BYTES, BearerToken, Mechanism, ScramKey, User

TOKEN_DAYS_MAX: Final = 366
Binding = tuple[ResourcePattern, AclEntry]


class Controller(Protocol):
    """What orders definitions (ControllerService)."""

    async def change_security(self, wish: JsonObject, *, by: str) -> None:
        """Have a wish fulfilled; return once this broker knows. `by`: who wishes it."""


class SecurityAdmin:
    """Questions and changes of one broker's administrators.

    Args:
        knows_brokers: whether other brokers have to prove to this one who they are.
    """

    def __init__(
        self,
        *,
        controller: Controller,
        book: Callable[[], SecurityBook],
        access: Access,
        audit: AuditLog,
        sign_in_needed: Callable[[], bool],
        knows_brokers: bool,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._controller = controller
        self._book = book
        self._access = access
        self._audit = audit
        self._sign_in_needed = sign_in_needed
        self._knows_brokers = knows_brokers
        self._wall_s = wall_s

    # --- seeing -------------------------------------------------------------------------------------------------------

    def users(self, principal: Principal) -> list[User]:
        """Return all users, sorted. Raises AccessDenied."""
        self._access.check(principal, Operation.DESCRIBE, Resource.CLUSTER)
        return sorted(self._book().users(), key=lambda user: user.name)

    def lists(self, principal: Principal) -> list[AclList]:
        """Return all access control lists, sorted. Raises AccessDenied."""
        self._access.check(principal, Operation.DESCRIBE, Resource.CLUSTER)
        return sorted(self._book().acls(), key=lambda acls: acls.key)

    def quotas(self, principal: Principal) -> list[Quota]:
        """Return all quotas, sorted. Raises AccessDenied."""
        self._access.check(principal, Operation.DESCRIBE, Resource.CLUSTER)
        return sorted(self._book().quotas(), key=lambda quota: quota.principal)

    def check_may_change(self, principal: Principal, *, own: str | None = None) -> None:
        """Pass if the principal may change users, lists and quotas, or is the user `own`; else raise AccessDenied."""
        is_own = own is not None and principal.name == USER_PREFIX + own and self._access.enforced
        if not is_own:
            self._access.check(principal, Operation.ALTER, Resource.CLUSTER)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def add_user(self, principal: Principal, name: str, password: str | None, *, expires_s: int = 0) -> None:
        """Make a user; without a password it signs in by token only.

        Raises:
            AccessDenied. PolicyViolation: it is there already, or would be the first and could administer nothing.
            Others as ControllerService.change_security.
        """
        keys = await self._keys(principal, password)
        wish = wishes.put_user(name, keys=keys, expires_s=expires_s, is_new=True)
        await self._change(principal, "user.added", wish, lambda: self._check_first(name), detail={"user": name})

    async def change_user(
        self,
        principal: Principal,
        name: str,
        *,
        password: str | None = None,
        is_enabled: bool | None = None,
        expires_s: int | None = None,
    ) -> None:
        """Change what is given of a user. Raises as `add_user`; PolicyViolation: it is not there."""
        keys = await self._keys(principal, password)
        wish = wishes.put_user(name, keys=keys, is_enabled=is_enabled, expires_s=expires_s, is_new=False)
        changed = {"password": "new"} if password is not None else {}
        changed |= {} if is_enabled is None else {"enabled": str(is_enabled).lower()}
        changed |= {} if expires_s is None else {"expires_s": str(expires_s)}
        await self._change(principal, "user.changed", wish, detail={"user": name, **changed})

    async def put_keys(
        self, principal: Principal, name: str, keys: Sequence[ScramKey], *, without: Iterable[Mechanism] = ()
    ) -> None:
        """Give a user these keys, making it if it is not there (KIP-554), or take keys away. Raises as `add_user`."""
        wish = wishes.put_user(name, keys=keys, without=without, is_new=None if keys else False)
        check = None if self._book().has_users or not keys else lambda: self._check_first(name)
        await self._change(principal, "user.keys_changed", wish, check, detail={"user": name})

    async def delete_user(self, principal: Principal, name: str) -> None:
        """Delete a user, its keys and tokens. Raises as `change_user`."""
        await self._change(principal, "user.deleted", wishes.delete_user(name), detail={"user": name})

    async def add_token(self, principal: Principal, user: str, name: str, *, days: int) -> tuple[str, int]:
        """Make a token of a user; return it, which nobody can again, and when it expires (seconds since 1970).

        Raises:
            AccessDenied: not for oneself, or signed in by a token (a stolen one would never end), and not allowed to
            alter the cluster. Others as `change_user`.
        """
        if not 1 <= days <= TOKEN_DAYS_MAX:
            raise PolicyViolation(f"a token lives 1..{TOKEN_DAYS_MAX} days")
        token, expires_s = new_token(), int(self._wall_s()) + days * 86_400
        wish = wishes.put_token(user, BearerToken(name=name, hash=hash_token(token), expires_s=expires_s))
        own = None if principal.token_hash else user
        await self._change(principal, "token.added", wish, own=own, detail={"user": user, "token_name": name})
        return token, expires_s

    async def delete_token(self, principal: Principal, user: str, name: str) -> None:
        """Delete a token. Raises as `add_token`."""
        wish = wishes.delete_token(user, name)
        await self._change(principal, "token.deleted", wish, own=user, detail={"user": user, "token_name": name})

    async def add_acls(self, principal: Principal, bindings: Sequence[Binding]) -> None:
        """Add entries. Raises AccessDenied; others as ControllerService.change_security."""
        await self._change(principal, "acls.added", wishes.add_acls(bindings), entries=_shown(bindings))

    async def remove_acls(self, principal: Principal, bindings: Sequence[Binding]) -> None:
        """Remove entries; what is not there is no error. Raises as `add_acls`."""
        await self._change(principal, "acls.removed", wishes.remove_acls(bindings), entries=_shown(bindings))

    async def set_quota(
        self,
        principal: Principal,
        of: str,
        *,
        produce_bytes_per_s: int | None = None,
        fetch_bytes_per_s: int | None = None,
        request_share_ppm: int | None = None,
    ) -> None:
        """Change limits of a principal: None leaves one as it is, 0 takes it away. Raises as `add_acls`."""
        wish = wishes.put_quota(
            of,
            produce_bytes_per_s=produce_bytes_per_s,
            fetch_bytes_per_s=fetch_bytes_per_s,
            request_share_ppm=request_share_ppm,
        )
        shown = ", ".join(f"{name}={value}" for name, value in wish.items() if name not in ("wish", "principal"))
        await self._change(principal, "quota.changed", wish, detail={"of": of, "limits": shown})

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _change(
        self,
        principal: Principal,
        what: str,
        wish: JsonObject,
        check: Callable[[], None] | None = None,
        *,
        own: str | None = None,
        detail: Mapping[str, str] = MappingProxyType({}),
        entries: Sequence[str] = (),
    ) -> None:
        self.check_may_change(principal, own=own)  # noted as a denial: as a change, anybody could push changes out
        try:
            if check is not None:
                check()
            await self._controller.change_security(wish, by=f"{principal.name}@{principal.host}")
        except GeorelayError as error:
            self._audit.changed(principal, what, outcome=error.code, entries=entries, **detail)
            raise
        self._audit.changed(principal, what, outcome="done", entries=entries, **detail)

    async def _keys(self, principal: Principal, password: str | None) -> tuple[ScramKey, ...]:
        """Return keys of a password; none for somebody who is going to be denied, because they cost."""
        if password is None or not self._access.allows(principal, Operation.ALTER, Resource.CLUSTER):
            return ()
        return await make_keys(password)

    def _check_first(self, name: str) -> None:
        """Refuse a first user whom the mesh would not protect, or who could not administer it."""
        if not self._knows_brokers and not self._book().has_users:
            raise PolicyViolation(
                f"a user would not keep anybody out: {STRANGERS}; 'georelay up' makes one by itself, also for a mesh "
                "that it made before"
            )
        self._refuse_lock_out(name)

    def _refuse_lock_out(self, name: str) -> None:
        """Refuse the user that would turn sign-in on for everybody and could not let anybody in."""
        if self._sign_in_needed() or self._access.enforced:
            return
        principal = Principal.of_user(name)
        index = AclIndex((acls.pattern, acls.entries) for acls in self._book().acls())
        if self._access.is_super_user(principal) or index.allows(
            principal.name, "", Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME
        ):
            return
        raise PolicyViolation(
            f"with its first user the mesh asks everybody to sign in, and {name} could not grant anything: first run "
            f"'georelay acls add --principal {USER_PREFIX}{name} --operation all --resource cluster', or put "
            f"{USER_PREFIX}{name} into security.super_users of every broker"
        )


async def make_keys(password: str, *, iterations: int = ITERATIONS) -> tuple[ScramKey, ...]:
    """Return fresh keys of a password for both mechanisms; the slow part runs in a thread."""

    def make() -> tuple[ScramKey, ...]:
        return tuple(
            make_key(mechanism, password, salt=secrets.token_bytes(SALT_BYTES), iterations=iterations)
            for mechanism in sorted(Mechanism)
        )

    return await asyncio.to_thread(make)


def _shown(bindings: Sequence[Binding]) -> list[str]:
    """Return entries for the audit log."""
    return [
        f"{entry.permission.name.lower()} {entry.principal}@{entry.host} {entry.operation.name.lower()} {pattern.key}"
        for pattern, entry in bindings
    ]
