"""What a member remembers over a restart, as text lines like those of `serf agent` (serf-wire 2.7). Pure.

    alive: NAME HOST:PORT | not-alive: NAME | clock: N | event-clock: N | query-clock: N | leave
    incarnation: N | tags: NAME BASE64 | forget: NAME      (ours; the agent passes over what it does not know)

Rule 1: lines are only appended; the last word about a name or a clock counts. A file that was cut anywhere is read as
        far as it is whole: a line without its end, or one that cannot be read, is passed over.
Rule 2: unlike the agent we do not forget the others after `leave`: a broker that was stopped shall find its pool again
        though its only seed is gone. The tags of a member are kept until it is reaped, alive or not.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Final

from mesh.gossip.lamport_core import LTIME_MAX
from mesh.gossip.member import Address, is_name
from mesh.gossip.serf_core import Clocks
from mesh.gossip.tags import decode_tags

SNAPSHOT_BYTES_MAX: Final = 16 * 1024 * 1024
ALIVE_MAX: Final = 65_536
METAS_MAX: Final = 4_096
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{1,5})")
_META: Final = re.compile(r"[A-Za-z0-9+/=]{1,700}")
_CLOCKS: Final = frozenset({"clock", "event-clock", "query-clock", "incarnation"})


@dataclass(slots=True, kw_only=True)
class Remembered:
    """What the file says.

    Args:
        alive: name -> address of members that were there at the end.
        metas: name -> tags, as base64 of what is gossiped.
    """

    alive: dict[str, Address] = field(default_factory=dict)
    metas: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    has_left: bool = False

    @property
    def clocks(self) -> Clocks:
        """Return the logical clocks."""
        return Clocks(
            members=self.numbers.get("clock", 0),
            events=self.numbers.get("event-clock", 0),
            queries=self.numbers.get("query-clock", 0),
        )

    @property
    def incarnation(self) -> int:
        """Return the highest incarnation of ours that was written down, 0 for none."""
        return self.numbers.get("incarnation", 0)

    def take(self, line: str) -> bool:
        """Take in one line; False: it says nothing that is understood."""
        word, _, rest = line.partition(": ")
        if word in _CLOCKS and rest.isascii() and rest.isdigit() and len(rest) < 20 and int(rest) <= LTIME_MAX:
            self.numbers[word] = max(self.numbers.get(word, 0), int(rest))
        elif word == "alive":
            name, _, text = rest.partition(" ")
            address = read_address(text)
            if not is_name(name) or address is None or len(self.alive) >= ALIVE_MAX:
                return False
            self.alive[name], self.has_left = address, False
        elif word in ("not-alive", "forget"):
            self.alive.pop(rest, None)
            if word == "forget":
                self.metas.pop(rest, None)
        elif word == "tags":
            name, _, meta = rest.partition(" ")
            if not is_name(name) or _META.fullmatch(meta) is None or len(self.metas) >= METAS_MAX:
                return False
            self.metas[name] = meta
        elif line == "leave":
            self.has_left = True
        else:
            return False
        return True

    def tags(self) -> dict[str, dict[str, str]]:
        """Return name -> tags of everybody that is remembered."""
        found: dict[str, dict[str, str]] = {}
        for name, meta in self.metas.items():
            try:
                found[name] = decode_tags(base64.b64decode(meta))
            except ValueError:  # CodecError is one: a line that was damaged
                continue
        return found

    def lines(self) -> list[str]:
        """Return the shortest file that says the same."""
        found = [f"alive: {name} {address_line(address)}" for name, address in self.alive.items()]
        found += [f"tags: {name} {meta}" for name, meta in self.metas.items()]
        found += [f"{word}: {number}" for word, number in self.numbers.items()]
        return [*found, "leave"] if self.has_left else found


def read_snapshot(raw: bytes) -> tuple[Remembered, int]:
    """Return what a file says, and how many of its lines were passed over."""
    remembered, refused = Remembered(), 0
    whole = raw[:SNAPSHOT_BYTES_MAX].rpartition(b"\n")[0]  # what is behind the last line's end was being written
    for line in whole.split(b"\n") if whole else ():
        try:
            refused += not remembered.take(line.decode())
        except UnicodeDecodeError:
            refused += 1
    return remembered, refused


def address_line(address: Address) -> str:
    """Return "host:port" as Go writes it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_address(text: str) -> Address | None:
    """Return the address in "host:port", None when it is none."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 65_536:
        return None
    return found[1].strip("[]"), int(found[2])
