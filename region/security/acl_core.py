"""The decision: may this principal do that to this resource?

Rule 1: a DENY that concerns the request wins over every ALLOW.
Rule 2: without an ALLOW that concerns it a request is denied.
Rule 3: READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS; an implied operation is
        never denied by a DENY of the one that implies it (as Kafka's StandardAuthorizer).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from region.security.acl import (
    ANY_NAME,
    AclEntry,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourcePattern,
    granted_by,
)

Lists = Mapping[ResourcePattern, Sequence[AclEntry]]


class AclIndex:
    """Lists by what they are about; a decision costs one look-up per distinct length of prefix."""

    def __init__(self, lists: Iterable[tuple[ResourcePattern, Sequence[AclEntry]]] = ()) -> None:
        self._lists: dict[ResourcePattern, Sequence[AclEntry]] = {}
        self._prefix_lengths: dict[Resource, set[int]] = {}
        for pattern, entries in lists:
            if not entries:
                continue
            self._lists[pattern] = entries
            if pattern.pattern is Pattern.PREFIXED:
                self._prefix_lengths.setdefault(pattern.resource, set()).add(len(pattern.name))

    def __len__(self) -> int:
        """Return how many lists there are."""
        return len(self._lists)

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Return the decision; see the rules of this module."""
        wanted = granted_by(operation)
        is_allowed = False
        for entry in self._about(resource, name):
            if not entry.concerns(principal, host):
                continue
            if entry.permission is Permission.DENY:
                if entry.operation in (operation, Operation.ALL):
                    return False
            elif entry.operation in wanted:
                is_allowed = True
        return is_allowed

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether there is a name, known or not, for which the operation is allowed (KIP-679).

        A DENY of the name, of a prefix of it, or of every name takes an ALLOW away.
        """
        wanted = granted_by(operation)
        denied = set(self._patterns(resource, principal, host, Permission.DENY, frozenset({operation, Operation.ALL})))
        if any(_is_everything(pattern) for pattern in denied):
            return False
        return any(
            not _is_covered(pattern, denied)
            for pattern in self._patterns(resource, principal, host, Permission.ALLOW, wanted)
        )

    def _about(self, resource: Resource, name: str) -> Iterator[AclEntry]:
        lists = self._lists
        for pattern in (
            ResourcePattern(resource=resource, name=name),
            ResourcePattern(resource=resource, name=ANY_NAME),
        ):
            yield from lists.get(pattern, ())
            if name == ANY_NAME:
                break
        for length in self._prefix_lengths.get(resource, ()):
            if length <= len(name):
                prefix = ResourcePattern(resource=resource, name=name[:length], pattern=Pattern.PREFIXED)
                yield from lists.get(prefix, ())

    def _patterns(
        self, resource: Resource, principal: str, host: str, permission: Permission, operations: frozenset[Operation]
    ) -> Iterator[ResourcePattern]:
        for pattern, entries in self._lists.items():
            if pattern.resource is resource and any(
                entry.permission is permission and entry.operation in operations and entry.concerns(principal, host)
                for entry in entries
            ):
                yield pattern


def _is_everything(pattern: ResourcePattern) -> bool:
    return pattern.pattern is Pattern.LITERAL and pattern.name == ANY_NAME


def _is_covered(pattern: ResourcePattern, denied: set[ResourcePattern]) -> bool:
    """Return whether every name of `pattern` is denied."""
    if pattern in denied:
        return True
    if _is_everything(pattern):
        return False
    return any(other.pattern is Pattern.PREFIXED and pattern.name.startswith(other.name) for other in denied)
