"""What turns on a link are worth: one stream catches up over a slow carrier beside another one at its tail.

    python -m tests.unit.mesh.measure_turns [--bytes 24576000]

The shipping IncomingLink over a carrier in virtual time: a frame takes as long as CARRIER_BYTES_PER_S needs for it, and
nothing else takes any time, so what is printed does not depend on the machine. A record comes on the other stream every
TAIL_EVERY_MS; its wait is from then until the frame that holds it has left the carrier. "Without turns" is the same
link with one queue for all sessions, first come, first served, in which those that are behind may fill the outbox.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.replication import incoming_link
from mesh.replication.fair_turns_core import FairTurns
from mesh.replication.frames import Ack, Batch, Hello, Open, decode_frame, encode_frame
from mesh.replication.settings import LinkSettings, MeshIdentity
from mesh.replication.stream_header import first_digest

CARRIER_BYTES_PER_S = 6_250_000  # 50 Mbit/s
BATCH_BYTES = 16_384
TAIL_EVERY_MS = 20.0
TURNS_OF_THE_LOOP_MAX = 10_000
KEYS = [StreamKey(bytes([row]) * 16, RegionNumber(0), 0) for row in range(2)]  # what catches up, the tail


class OneQueue(FairTurns[Any]):
    """Everybody in one queue, as if nobody were behind."""

    def wait(self, session: Any, *, is_behind: bool) -> None:
        super().wait(session, is_behind=False)


class UnfairLink(incoming_link.IncomingLink):
    """A link on which those that are behind may fill as much as anybody."""

    @property
    def has_bulk_room(self) -> bool:
        return self.has_room


class CarrierClock:
    """Time as the carrier makes it pass."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def monotonic_ns(self) -> int:
        return int(self.now_ms * 1e6)

    wall_ns = monotonic_ns


class Home:
    """Directory of two logs, and owner of the link."""

    def __init__(self, logs: list[Any]) -> None:
        self.logs = dict(zip(KEYS, logs, strict=True))

    def committed_log(self, key: StreamKey) -> Any:
        return self.logs[key]

    def leader_of(self, key: StreamKey) -> int:
        return 1001

    def too_old(self, _peer: Any) -> str:
        return ""

    def session_opened(self, session: Any) -> None: ...

    def session_ended(self, session: Any) -> None: ...

    def link_ended(self, link: Any) -> None: ...


class Carrier:
    """Takes one frame at a time."""

    peer = "measured"
    peer_names = None
    gather_ms = 2

    def __init__(self) -> None:
        self.is_writable = True
        self.receiver: Any = None
        self.frame: bytes | None = None

    def quiet_ns(self) -> None: ...

    def met(self) -> None: ...

    def start(self, receiver: Any) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None:
        self.is_writable = False
        self.frame = frame

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    async def next_frame(self) -> bytes:
        """Return the frame that is on its way."""
        for _ in range(TURNS_OF_THE_LOOP_MAX):
            if self.frame is not None:
                frame, self.frame = self.frame, None
                return frame
            await asyncio.sleep(0.0001)
        raise AssertionError("nothing is sent any more")


def memory_log() -> Any:
    """Return the log in memory that the tests beside this file use."""
    spec = importlib.util.spec_from_file_location("mesh_conftest", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.MemoryLog


async def measure(payloads: list[bytes], *, turns: bool) -> tuple[list[float], float]:
    """Return (waits of the records at the tail in ms, ascending; ms until the other stream has caught up)."""
    incoming_link.FairTurns = FairTurns if turns else OneQueue  # type: ignore[attr-defined]
    clock, carrier, make_log = CarrierClock(), Carrier(), memory_log()
    logs = [make_log(key=key) for key in KEYS]
    for payload in payloads:
        logs[0].sequence(payload)
    home: Any = Home(logs)
    nobody: Any = None
    identity = MeshIdentity(mesh_id="m", region="us", region_number=RegionNumber(1), broker_id=BrokerId(1001))
    link = (incoming_link.IncomingLink if turns else UnfairLink)(
        carrier,
        identity=identity,
        directory=home,
        publisher=nobody,
        requests=nobody,
        owner=home,
        clock=clock,
        settings=LinkSettings(compression=False),
    )
    link.start()
    carrier.receiver.frame_received(encode_frame(Open(2, "m", "eu", RegionNumber(2), BrokerId(2001))))
    hellos = [Hello(row, KEYS[row], Epoch(1), Offset(0), first_digest(KEYS[row])) for row in range(2)]
    carrier.receiver.frame_received(encode_frame(*hellos))
    began_ms = clock.now_ms
    due_ms, came_ms, waits, got = began_ms + TAIL_EVERY_MS, list[float](), list[float](), [0, 0]
    while got[0] < len(payloads):
        frame = await carrier.next_frame()
        left_ms = clock.now_ms + len(frame) / CARRIER_BYTES_PER_S * 1000
        while due_ms <= left_ms:  # while the frame is on its way
            clock.now_ms = due_ms
            came_ms.append(due_ms)
            logs[1].sequence(b"x" * 100)
            due_ms += TAIL_EVERY_MS
        clock.now_ms = left_ms
        for part in decode_frame(frame):
            if isinstance(part, Batch):
                if part.session == 1:
                    waits.append(left_ms - came_ms[got[1]])
                got[part.session] += 1
        carrier.is_writable = True
        carrier.receiver.link_writable()
        rows = tuple((row, Offset(count)) for row, count in enumerate(got) if count)
        carrier.receiver.frame_received(encode_frame(Ack(rows)))
    return sorted(waits), clock.now_ms - began_ms


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=1_500 * BATCH_BYTES, help="to catch up on (default 24.6 MB)")
    options = parser.parse_args()
    rng = random.Random(1)
    payloads = [rng.randbytes(BATCH_BYTES) for _ in range(max(1, options.bytes // BATCH_BYTES))]
    for turns in (False, True):
        waits, took_ms = asyncio.run(measure(payloads, turns=turns))
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        print(
            f"{'with' if turns else 'without'} turns: {len(waits)} records at the tail waited p50 {p50:.0f} ms, "
            f"p99 {p99:.0f} ms, max {waits[-1]:.0f} ms; the other stream caught up in {took_ms / 1000:.2f} s"
        )


if __name__ == "__main__":
    main()
