"""Asks every broker of a region for the ends of a topic's partitions, all the time, and records what it is told.

A consumer asks the leader it believes in and gives up on a silent one. This one asks all of them and waits long: so a
leader that was stopped and does not know yet that it was deposed is asked while it sleeps, and answers first thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from georelay.client.broker_connection import BrokerConnection
from georelay.client.stream_reader import LATEST, LIST_OFFSETS_VERSION
from georelay.errors import GeorelayError
from georelay.wire.api import ApiKey
from georelay.wire.requests import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.campaign import Topic

ASK_SECONDS: Final = 0.1
ANSWER_SECONDS_MAX: Final = 15  # longer than any broker is stopped


class EndAsker:
    """Use as an async context manager.

    Args:
        brokers: "host:port" Kafka addresses of the topic's home: their answers promise to count everything that was
            acknowledged before.
        folder: of histories.
    """

    def __init__(self, brokers: Sequence[str], topic: Topic, folder: Path) -> None:
        self._brokers, self._topic, self._folder = brokers, topic, folder
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> EndAsker:
        """Begin to ask."""
        for row, address in enumerate(self._brokers):
            name = f"{self._topic.name}-ends-{row}"
            writer = HistoryWriter(self._folder / f"{name}.history", name)
            self._tasks.append(asyncio.create_task(self._ask(address, writer), name=name))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask no more. Raises what broke an asker."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _ask(self, address: str, writer: HistoryWriter) -> None:
        host, _, port = address.rpartition(":")
        connection: BrokerConnection | None = None
        try:
            while True:
                for partition in range(self._topic.partitions):
                    key = f"{self._topic.name}/{partition}"
                    number = writer.invoke(Kind.END, key, site=self._topic.home, linear=True)
                    try:
                        async with asyncio.timeout(ANSWER_SECONDS_MAX):
                            if connection is None:
                                connection = await BrokerConnection.dial(host, int(port))
                            await self._ask_one(connection, partition, writer, number)
                    except (OSError, GeorelayError) as error:  # TimeoutError is an OSError
                        writer.unknown(number, repr(error))
                        if connection is not None:
                            connection.close()
                        connection = None
                        await asyncio.sleep(ASK_SECONDS)
                await asyncio.sleep(ASK_SECONDS)
        finally:
            if connection is not None:
                connection.close()
            writer.close()

    async def _ask_one(self, connection: BrokerConnection, partition: int, writer: HistoryWriter, number: int) -> None:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=self._topic.name, partitions=(wanted,)),))
        answer = await connection.request(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        row = answer.topics[0].partitions[0]
        if row.error_code:
            writer.failed(number, f"error {row.error_code}")  # most brokers do not lead it
        else:
            writer.produced(number, int(row.offset))
