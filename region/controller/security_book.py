"""Security definitions in the order in which the definitions home made them; graves included.

The sequence of indexes is that of topics too, but the position is the book's own: a region that could not read these
definitions yet went on with topics, and reads these from where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from region.routing.binding import Binding
from region.security.definition import SECRET_NAME, AclList, Grave, Kind, Quota, Secret, SecurityDefinition, kind_of
from region.security.user import User


class SecurityBook:
    """Users, lists and quotas by name.

    Invariants: 1 one definition per (kind, key)   2 the index of every definition is <= `index`   3 in order of index
    4 every deletion above `forgotten_to` and up to `index` has its grave, unless the same was made again.
    """

    def __init__(self) -> None:
        self.index = 0
        self.forgotten_to = 0
        self.entry_count = 0  # of all lists together
        self._rows: dict[tuple[Kind, str], SecurityDefinition] = {}
        self._live: dict[Kind, int] = dict.fromkeys(Kind, 0)

    def __len__(self) -> int:
        """Return how many definitions there are, graves included."""
        return len(self._rows)

    def count(self, kind: Kind) -> int:
        """Return how many definitions of a kind live."""
        return self._live[kind]

    @property
    def grave_count(self) -> int:
        """Return how many definitions were deleted and not made again."""
        return len(self._rows) - sum(self._live.values())

    @property
    def has_users(self) -> bool:
        """Return whether the mesh has any user, enabled or not."""
        return self._live[Kind.USER] > 0

    def find(self, kind: Kind, key: str) -> SecurityDefinition | None:
        """Return a definition or its grave."""
        return self._rows.get((kind, key))

    def user(self, name: str) -> User | None:
        """Return the user of that name."""
        found = self._rows.get((Kind.USER, name))
        return found if isinstance(found, User) else None

    def quota(self, principal: str) -> Quota | None:
        """Return the quota of exactly that principal."""
        found = self._rows.get((Kind.QUOTA, principal))
        return found if isinstance(found, Quota) else None

    def secret(self) -> bytes:
        """Return the secret of sign-ins, b"" before there is one."""
        found = self._rows.get((Kind.SECRET, SECRET_NAME))
        return found.value if isinstance(found, Secret) else b""

    def users(self) -> Iterator[User]:
        """Return the users, in order of definition."""
        return (row for row in self._rows.values() if isinstance(row, User))

    def acls(self) -> Iterator[AclList]:
        """Return the lists, in order of definition."""
        return (row for row in self._rows.values() if isinstance(row, AclList))

    def quotas(self) -> Iterator[Quota]:
        """Return the quotas, in order of definition."""
        return (row for row in self._rows.values() if isinstance(row, Quota))

    def bindings(self) -> Iterator[Binding]:
        """Return the bindings, in order of definition."""
        return (row for row in self._rows.values() if isinstance(row, Binding))

    def everything(self) -> Iterator[SecurityDefinition]:
        """Return definitions and graves, in order of index."""
        return iter(self._rows.values())

    def since(self, index: int, *, limit: int) -> list[SecurityDefinition]:
        """Return at most `limit` definitions with a higher index, the lowest first."""
        newer = 0
        for row in reversed(self._rows.values()):
            if row.index <= index:
                break
            newer += 1
        start = len(self._rows) - newer
        return list(islice(self._rows.values(), start, start + limit)) if newer else []

    def forget_deleted(self, to: int) -> None:
        """Drop the graves up to an index. The newest definition stays: by it readers know that they have all."""
        dead = [
            place
            for place, row in self._rows.items()
            if isinstance(row, Grave) and row.index <= to and row.index < self.index
        ]
        for place in dead:
            del self._rows[place]
        self.forgotten_to = max(self.forgotten_to, to)

    def bury(self, kind: Kind, key: str) -> None:
        """Put a grave in the place of a definition that was deleted elsewhere, long ago."""
        known = self._rows.get((kind, key))
        if known is not None and not isinstance(known, Grave):
            self._count(known, -1)
            self._rows[kind, key] = Grave(kind=kind, key=key, index=known.index)

    def remember(self, definition: SecurityDefinition) -> None:
        """Enter a definition at the end, in place of the one with its kind and key."""
        assert definition.index > self.index, (definition.index, self.index)
        key = (kind_of(definition), definition.key)
        self._count(self._rows.pop(key, None), -1)
        self._rows[key] = definition
        self._count(definition, +1)
        self.index = definition.index

    def _count(self, definition: SecurityDefinition | None, by: int) -> None:
        if definition is None or isinstance(definition, Grave):
            return
        self._live[kind_of(definition)] += by
        if isinstance(definition, AclList):
            self.entry_count += by * len(definition.entries)
