"""What came back from the members of a pool: to a query, and to a keyring command."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from mesh.gossip.faults import CodecError
from mesh.gossip.query_payloads import KeyResponse
from mesh.gossip.serf_effects import QueryAnswered

FINGERPRINT_CHARS = 12


class JoinFailed(Exception):
    """No seed answered; the text has the cause of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport:
    """Who acknowledged, and who answered what, until the deadline."""

    acknowledged: tuple[str, ...]
    answers: Mapping[str, bytes] = field(repr=False)


class OpenQuery:
    """A query that is waited for; `over` resolves at its deadline."""

    def __init__(self, over: asyncio.Future[QueryReport]) -> None:
        self.over = over
        self._acknowledged: list[str] = []
        self._answers: dict[str, bytes] = {}

    def take(self, answer: QueryAnswered) -> None:
        """Note one answer."""
        if answer.is_ack:
            self._acknowledged.append(answer.sender)
        else:
            self._answers[answer.sender] = answer.payload

    def close(self) -> None:
        """Report what there is."""
        if not self.over.done():
            self.over.set_result(
                QueryReport(acknowledged=tuple(sorted(self._acknowledged)), answers=dict(sorted(self._answers.items())))
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReport:
    """What members did with a keyring command.

    Args:
        members: alive when it was asked. answered, done: how many answered, and did it.
        faults: member -> why not.
        keys, primaries: base64 key -> how many members have it, use it first. Secret: never in a log.
    """

    members: int
    answered: int
    done: int
    faults: Mapping[str, str]
    keys: Mapping[str, int] = field(repr=False)
    primaries: Mapping[str, int] = field(repr=False)

    @classmethod
    def of(cls, report: QueryReport, *, members: int) -> KeyReport:
        """Count the answers."""
        faults: dict[str, str] = {}
        keys: Counter[str] = Counter()
        primaries: Counter[str] = Counter()
        done = 0
        for name, payload in report.answers.items():
            try:
                response = KeyResponse.decode(payload)
            except CodecError as fault:
                faults[name] = str(fault)
                continue
            if response.result:
                done += 1
            if response.text or not response.result:
                faults[name] = response.text or "refused"
            keys.update(response.keys)
            if response.primary:
                primaries[response.primary] += 1
        return cls(
            members=members, answered=len(report.answers), done=done, faults=faults, keys=keys, primaries=primaries
        )


def fingerprint(key: bytes) -> str:
    """Return what a key is called where people read it: the beginning of its SHA-256."""
    return hashlib.sha256(key).hexdigest()[:FINGERPRINT_CHARS]


def fingerprint_of_text(key: str) -> str:
    """Return the fingerprint of a key in base64."""
    return fingerprint(base64.b64decode(key))
