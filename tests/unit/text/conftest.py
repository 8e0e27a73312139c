"""A text listener over the in-memory region of the Kafka tests, with groups in memory; and a person with telnet."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import Unauthenticated
from region.api.coalescer import Coalescer
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.coordination.in_memory import InMemoryCoordinators
from region.coordination.part import Part
from region.groups.factory import groups_factory
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames
from region.security.access import Access, Principal
from region.text.listener import TextListener
from region.text.services import TextServices
from tests.unit.kafka import region_in_memory


class FakeSignIn:
    """Nobody has to sign in until `users` is set."""

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self.ended: set[str] = set()  # principals

    def is_still_valid(self, principal: Principal) -> bool:
        return principal.name not in self.ended and not (self.required and principal.user == "ANONYMOUS")

    @property
    def required(self) -> bool:
        return bool(self.users)

    async def password(self, user: str, password: str, *, host: str, how: str = "password") -> Principal:
        await asyncio.sleep(0)
        if self.users.get(user) != password:
            raise Unauthenticated("wrong user or password")
        return Principal.of_user(user, host=host)


class Person:
    """One connection; lines are sent and read as a person does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def type(self, *lines: str) -> None:
        self.writer.write("".join(f"{line}\r\n" for line in lines).encode())

    async def read(self) -> str:
        """Return the next line; "" when the broker has closed."""
        async with asyncio.timeout(5):
            return (await self.reader.readline()).decode().removesuffix("\r\n")

    async def until(self, start: str) -> str:
        """Return the next line that begins so; others are skipped."""
        while True:
            line = await self.read()
            if line.startswith(start):
                return line
            assert line, f"closed before {start!r}"

    async def is_cut_off(self) -> bool:
        """Wait for the broker to close without a word."""
        try:
            return await self.read() == ""
        except ConnectionResetError:
            return True

    async def ask(self, line: str) -> str:
        """Return the answer to one line."""
        self.type(line)
        while True:
            answer = await self.read()
            if not answer.startswith(("*", "REC ", "PARTS ", "SKIP ", "END ")):
                return answer


class TextBed:
    """A listener over a fake region, and persons who talk to it."""

    def __init__(self) -> None:
        self.cluster = region_in_memory.FakeCluster()
        self.sign_in = FakeSignIn()
        self.recorder = region_in_memory.FakeRecorder()
        self.coordinators: Any = InMemoryCoordinators()
        names = TopicNames(
            topic=self.cluster.topic,
            topics=self.cluster.topics,
            version=lambda: self.cluster.metadata_epoch,
            is_deleted=lambda _: False,
        )
        settings = GroupSettings(initial_rebalance_delay_ms=0)
        self.coordinators.register(Part.GROUPS, groups_factory(names, settings, rng=random.Random(1)))
        self.access = Access.open()
        self.listener: TextListener | None = None
        self.port = 0
        self._coalescer = Coalescer(self.cluster, entry_region=1, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns)
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self, *, region_name: Callable[[int], str] = str, **options: Any) -> None:
        services = TextServices(
            cluster=self.cluster,
            publisher=RecordPublisher(self.cluster, self._coalescer),
            reader=StreamReader(self.cluster),
            sign_in=self.sign_in,
            recorder=self.recorder,
            wall_ns=time.time_ns,
            monotonic_ns=time.monotonic_ns,
            coordinators=self.coordinators,
            access=self.access,
            region_name=region_name,
        )
        self.listener = TextListener(services, host="127.0.0.1", port=0, **options)
        self.port = await self.listener.start()

    async def person(self, *, greeted: bool = True) -> Person:
        if self.listener is None:
            await self.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        self._writers.append(writer)
        person = Person(reader, writer)
        if greeted:
            assert (await person.read()).startswith("OK georelay text 1 region us broker 1001")
        return person

    async def is_refused(self) -> bool:
        """Return whether somebody who connects is cut off without a word."""
        try:
            person = await self.person(greeted=False)
        except ConnectionResetError:
            return True
        return await person.is_cut_off()

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if self.listener is not None:
            await self.listener.close()
        await self._coalescer.close()


@pytest.fixture
async def bed() -> Any:
    """A text listener over an in-memory region."""
    bed = TextBed()
    yield bed
    await bed.close()
