"""The rules in force on one broker: the lists of the mesh, and whether they are enforced at all.

Rule 1: "off" and "on" are what they say. "auto" enforces as soon as any listener is off loopback or any user exists.
Rule 2: the lists are those of the newest definitions this broker has applied; their index is their version.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from region.controller.security_book import SecurityBook
from region.security.acl_core import AclIndex


class Authorization(enum.StrEnum):
    """The setting `security.authorization`."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class BookRules:
    """AccessRules over the controller's state.

    Args:
        sign_in_needed: whether clients have to sign in now; whoever signs in needs to be granted something.
        is_loopback_only: whether no listener can be reached from another machine.
    """

    def __init__(
        self,
        *,
        book: Callable[[], SecurityBook],
        authorization: Authorization = Authorization.AUTO,
        sign_in_needed: Callable[[], bool] = lambda: False,
        is_loopback_only: bool = True,
    ) -> None:
        self._book = book
        self._authorization = authorization
        self._sign_in_needed = sign_in_needed
        self._is_loopback_only = is_loopback_only
        self._built_of = -1
        self._index = AclIndex()

    @property
    def version(self) -> int:
        """Return the index of the newest definition."""
        return self._book().index

    @property
    def enforced(self) -> bool:
        """Return whether anybody but super users needs an ALLOW."""
        if self._authorization is not Authorization.AUTO:
            return self._authorization is Authorization.ON
        return not self._is_loopback_only or self._sign_in_needed()

    @property
    def index(self) -> AclIndex:
        """Return the lists."""
        book = self._book()
        if self._built_of != book.index:
            self._index = AclIndex((acls.pattern, acls.entries) for acls in book.acls())
            self._built_of = book.index
        return self._index
