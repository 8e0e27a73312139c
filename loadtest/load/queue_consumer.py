"""A consumer of a queue over HTTP, as a process that somebody kills.

`python -m loadtest.load.queue_consumer URL NAME HISTORY SEED`: URL of the queue.

It acknowledges good records, rejects poison ones, rejects some good ones with a delay, and now and then it dies with
leases in its hands. Everything that it is told stands in its history file before it goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtest.load.engine_values import name_of
from loadtest.load.queue_history import EventFile, is_poison

REJECTED_SHARE: Final = 0.05  # of deliveries of good records
REJECT_DELAY_MS: Final = 500
DEATH_SHARE: Final = 0.01  # of receives
TIMEOUT: Final = aiohttp.ClientTimeout(total=45)
RECEIVE_MAX: Final = 20
WAIT_MS: Final = 2_000
DIED: Final = 17  # exit code of a death of its own will


class Consumer:
    """Runs until it is killed."""

    def __init__(self, url: str, name: str, history: Path, *, seed: int, http: aiohttp.ClientSession) -> None:
        self._url, self._name, self._http = url, name, http
        self._rng = random.Random(seed)
        self._events = EventFile(history)

    async def run(self) -> None:
        """Consume."""
        while True:
            rows = await self._receive()
            if rows and self._rng.random() < DEATH_SHARE:
                os._exit(DIED)  # with leases that nobody gives back
            good = [row for row in rows if not self._is_rejected(row)]
            bad = [row for row in rows if row not in good]
            await self._acknowledge(good)
            for row in bad:
                await self._reject(row)

    def _is_rejected(self, row: dict[str, Any]) -> bool:
        return is_poison(_name(row)) or self._rng.random() < REJECTED_SHARE

    async def _post(self, path: str, body: dict[str, Any], query: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer; None when it is an error or lost."""
        try:
            async with self._http.post(f"{self._url}/{path}", json=body, params=query) as answer:
                if answer.status >= 300:
                    await asyncio.sleep(0.1)
                    return {} if answer.status == 503 else None
                return dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(0.1)
            return None

    async def _receive(self) -> list[dict[str, Any]]:
        query = {"consumer": self._name, "max": RECEIVE_MAX, "wait_ms": WAIT_MS, "session_timeout_ms": 300_000}
        answer = await self._post("records", {}, query)
        rows = (answer or {}).get("records", [])
        at = time.time() * 1000
        self._events.note("got", [_named(row, at=at, until=row["leased_until_ms"]) for row in rows])
        return list(rows)

    async def _acknowledge(self, rows: list[dict[str, Any]]) -> None:
        """Acknowledge until there is an answer; one that is lost is asked again, and then perhaps was done before."""
        now = time.time() * 1000
        self._events.note("acking", [_named(row, at=now) for row in rows])
        while rows:
            body = {"action": "acknowledge", "leases": [row["lease"] for row in rows]}
            answer = await self._post("leases", body | {"consumer": self._name}, {})
            if not answer:
                continue
            at = time.time() * 1000
            codes = [result["code"] for result in answer["results"]]
            pairs = list(zip(rows, codes, strict=True))
            self._events.note("acked", [_named(row, at=at) for row, code in pairs if code == "OK"])
            self._events.note("over", [_named(row, at=at) for row, code in pairs if code != "OK"])
            return

    async def _reject(self, row: dict[str, Any]) -> None:
        body = {"action": "reject", "leases": [row["lease"]], "delay_ms": REJECT_DELAY_MS, "consumer": self._name}
        self._events.note("rejecting", [_named(row, at=time.time() * 1000, delay=REJECT_DELAY_MS)])
        answer = await self._post("leases", body, {})
        at = time.time() * 1000
        if answer:
            is_held = answer["results"][0]["code"] == "OK"
            self._events.note("rejected" if is_held else "over", [_named(row, at=at)])


def _name(row: dict[str, Any]) -> str:
    return name_of(str(row["value"]).encode())


def _named(row: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"n": _name(row), "d": row["deliveries"], **more}


async def consume(url: str, name: str, history: str, seed: str) -> None:
    """Consume until killed."""
    async with aiohttp.ClientSession(timeout=TIMEOUT) as http:
        await Consumer(url, name, Path(history), seed=int(seed), http=http).run()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
