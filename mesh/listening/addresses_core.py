"""Where one broker may be reached, as far as anybody said so. Pure.

An address is a hint, whoever told it: the disk's identity and the certificates say who answers. Addresses change while
everybody is down, all at once, so no word replaces another source's; what has answered is not given up for a word.

Rule 1: the last word of each source is kept, and nothing else; so there are never more than there are sources.
Rule 2: what is dialled stays until it failed; then the next one is dialled, the one that was told last first.
Rule 3: several dials of one broker may fail together: only a failure of what is dialled now counts.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

AddressT = TypeVar("AddressT")


class Source(enum.Enum):
    """Who tells of an address."""

    CONFIGURATION = enum.auto()
    REGION = enum.auto()  # what the broker's own region has recorded: true when it was written
    CONTROL = enum.auto()  # what mesh control has recorded
    GOSSIP = enum.auto()
    GREETING = enum.auto()  # the broker itself, when it dialled us


class Addresses(Generic[AddressT]):
    """The addresses of one broker; not empty."""

    def __init__(self, address: AddressT, source: Source) -> None:
        self._told = {source: address}
        self._current = address

    @property
    def current(self) -> AddressT:
        """Return what to dial, or what answered."""
        return self._current

    @property
    def is_only(self) -> bool:
        """Return whether there is nothing else to try."""
        return set(self._told.values()) <= {self._current}

    def tell(self, address: AddressT, source: Source) -> None:
        """Take in the word of a source; it replaces what that source said before."""
        if self._told.get(source) != address:
            self._told.pop(source, None)
            self._told[source] = address  # last: it is the newest word

    def failed(self, address: AddressT) -> None:
        """Go on to the next address: nobody answers at this one, or somebody else."""
        if address != self._current:
            return
        ring = list(dict.fromkeys(reversed(self._told.values())))
        place = ring.index(address) + 1 if address in ring else 0
        self._current = ring[place % len(ring)]
