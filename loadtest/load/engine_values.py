"""What engines and Locust share: the plan of an engine, the values of records, the names of what is counted."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.load.campaign import SHARING, TRANSFORMER, Campaign, Readers, Topic, Users
from loadtest.load.campaign_file import load
from loadtest.login import Login

PUBLISH, ABORT, DELIVER, LATE = "publish", "abort", "deliver", "late"  # what is counted; late: by slow readers
COMPLETE: Final = "complete"
PROGRAM: Final = "program"  # beside the load; Locust does not count it
SHOWN: Final = "shown"  # by a damaged broker to nobody's reader
REFUSED: Final = "refused"  # begins the note of what a broker refused and the client did not send again
EPOCH: Final = "epoch "  # begins the note of an acknowledgement whose client was told it
PADDING: Final = b"."
FLUSH_S: Final = 125.0  # how long a publisher waits for its last answers
SUM_CHARS: Final = 8
SHOWN_BYTES_MAX: Final = 64
PUBLISHER: Final = re.compile(r".*-(\d+)-([a-z][a-z0-9-]*)")  # as publisher_name makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one engine does.

    Args:
        endpoints: as `georelay up --endpoints` writes it.
        regions: where this engine's clients connect.
        folder: of the results; histories go below it.
        worker: unique among the engines of a run; part of every record's name.
        settings: of librdkafka, how clients sign in; other clients sign in the same way.
        reads: whether this worker has the readers of its regions; of several in a region one has them, so that there
            are as many as the campaign says.
    """

    campaign: Campaign
    endpoints: Mapping[str, Any]
    regions: tuple[str, ...]
    folder: Path
    worker: str
    settings: Mapping[str, str]
    reads: bool = True

    def bootstrap(self, region: str) -> str:
        """Return the brokers of a region, as librdkafka wants them."""
        return ",".join(self.endpoints["regions"][region]["kafka"])

    def rows(self) -> list[tuple[int, Users, str]]:
        """Return (row of the campaign's users, those users, region) of every publisher of this engine."""
        return [
            (row, users, region)
            for row, users in enumerate(self.campaign.users)
            for region in self.regions
            if not users.regions or region in users.regions
        ]

    @property
    def login(self) -> Login:
        """Return how clients sign in."""
        return Login(rdkafka=self.settings)

    def addresses(self, region: str, listener: str) -> Sequence[str]:
        """Return where the brokers of a region listen: kafka, grpc, admin (HTTP) or text."""
        found: Sequence[str] = self.endpoints["regions"][region][listener]
        return found

    def connect(self, region: str) -> dict[str, Any]:
        """Return the arguments of `georelay.connect` for a region."""
        return {"url": f"grpc://{','.join(self.addresses(region, 'grpc'))}", **self.login.sdk}

    def spots(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Return (stream, partition) of everything that readers of these topics read."""
        return [
            (stream, partition)
            for topic in self.topics(names)
            for stream in topic.streams(self.campaign.topology.regions)
            for partition in range(topic.partitions)
        ]

    def topics(self, names: Sequence[str]) -> tuple[Topic, ...]:
        """Return topics by their names."""
        by_name = {topic.name: topic for topic in self.campaign.topics}
        return tuple(by_name[name] for name in names)

    def readers(self) -> list[tuple[str, str, Readers, str]]:
        """Return (name, region, readers, group or queue or "") of every reader of this engine."""
        if not self.reads:
            return []
        return [
            (
                f"{self.worker}-{LATE if readers.is_late else DELIVER}{row}.{copy}-{region}",
                region,
                readers,
                f"load-{row}-{copy % readers.groups}" if readers.kind in SHARING else "",
            )
            for row, readers in enumerate(self.campaign.readers)
            for region in self.regions
            if not readers.regions or region in readers.regions
            for copy in range(readers.count)
        ]

    def complete_readers(self) -> list[tuple[str, str, Readers, str]]:
        """Return the same for one more read of everything in every region."""
        names = (topic.name for topic in self.campaign.topics if not topic.filled_mb)
        made = {row.topics[1] for row in self.campaign.programs if row.kind == TRANSFORMER}  # judged by itself
        everything = Readers(topics=tuple(name for name in names if name not in made))
        return [(f"{self.worker}-{COMPLETE}-{region}", region, everything, "") for region in self.regions]


def read_plan(path: Path, settings: Mapping[str, str]) -> Plan:
    """Return the plan of a file that `written` made."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return Plan(
        campaign=load(Path(document["campaign"])),
        endpoints=json.loads(Path(document["endpoints"]).read_text(encoding="utf-8")),
        regions=tuple(document["regions"]),
        folder=Path(document["folder"]),
        worker=document["worker"],
        settings=settings,
        reads=document["reads"],
    )


def written(
    path: Path,
    *,
    campaign: Path,
    endpoints: Path,
    regions: Sequence[str],
    folder: Path,
    worker: str,
    reads: bool = True,
) -> Path:
    """Write a plan and return its file."""
    rows: dict[str, Any] = {"campaign": str(campaign), "endpoints": str(endpoints), "regions": list(regions)}
    rows |= {"folder": str(folder), "worker": worker, "reads": reads}
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def value_of(name: str, number: int, due_ns: int, size: int) -> bytes:
    """Return the value of a record: its name, its number, when it was due (wall clock), a checksum, and filling."""
    head = f"{name}:{number}:{due_ns}:".encode()
    size = max(size, len(head) + SUM_CHARS + 1)
    return b"%b%b:" % (head, _sum_of(head, size)) + PADDING * (size - len(head) - SUM_CHARS - 1)


def parts_of(value: bytes) -> tuple[str, int, int]:
    """Return (name, number, due_ns) of a value. Raises ValueError for bytes that are none of ours, every one right."""
    name, number, due_ns, told, filling = value.split(b":", 4)
    if filling.strip(PADDING) or told != _sum_of(b"%b:%b:%b:" % (name, number, due_ns), len(value)):
        raise ValueError("a byte of it is not ours")
    return name.decode(), int(number), int(due_ns)


def _sum_of(head: bytes, size: int) -> bytes:
    return b"%0*x" % (SUM_CHARS, zlib.crc32(b"%b%d" % (head, size)))


def name_of(value: bytes) -> str:
    """Return the name of a record in histories: NAME:NUMBER, or bytes:HEX for what is none of ours."""
    try:
        name, number, _ = parts_of(value)
    except ValueError:
        return f"bytes:{value[:SHOWN_BYTES_MAX].hex()}"
    return f"{name}:{number}"


def publisher_name(worker: str, row: int, region: str) -> str:
    """Return the name of a publisher; it ends with the region in which it publishes."""
    return f"{worker}-{row}-{region}"


def row_of(record: str) -> int:
    """Return the row of the campaign's users that sent a record, by its name in histories."""
    return int(_ended(record.rpartition(":")[0])[0])


def method_of(reader: str) -> str:
    """Return what deliveries to a reader are counted as: those to late ones say nothing about the mesh."""
    if reader.startswith(SHOWN):
        return SHOWN
    return LATE if f"-{LATE}" in reader else DELIVER


def is_complete(reader: str) -> bool:
    """Return whether a reader is one of `complete_readers`."""
    return f"-{COMPLETE}-" in reader


def origin_of(name: str) -> str:
    """Return the region of a publisher's name."""
    return _ended(name)[1]


def _ended(publisher: str) -> tuple[str, str]:
    """Return the row and the region with which a publisher's name ends; the region may have hyphens."""
    found = PUBLISHER.fullmatch(publisher)
    return (found[1], found[2]) if found else ("", publisher.rpartition("-")[2])


class WallClock:
    """The wall clock as it was at the begin, carried on by the monotonic one: it never steps."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return time.monotonic_ns() + self._offset_ns

    def stepped_ms(self) -> float:
        """Return by how much the machine's clock has moved against it since: latencies are wrong by as much."""
        return abs(time.time_ns() - self.now_ns()) / 1e6
