"""What brokers and gateways tell systemd, on a real datagram socket, with sleeps that the test ends."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from georelay.errors import ConfigError
from georelay.service_notice import LOOK_S, ServiceNotice

PID: Final = 4711


class Manager:
    """The service manager's end of the socket."""

    def __init__(self, name: str) -> None:
        self.environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "600000", "WATCHDOG_PID": str(PID)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@georelay-test-{os.getpid()}")
    yield made
    made.close()


class Naps:
    """Sleeps that last until the test ends them; `asked` has how long each was to be."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._over = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._over.wait()
        self._over.clear()

    async def end_one(self) -> None:
        self._over.set()
        await settle()


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_start_is_given_more_time_while_it_goes_on_and_ready_is_told_once(manager: Manager) -> None:
    ready, naps = [False], Naps()
    notice = ServiceNotice(manager.environment, pid=PID)
    telling = asyncio.create_task(notice.follow(lambda: ready[0], sleep=naps.sleep))
    await settle()
    assert manager.heard() == [["EXTEND_TIMEOUT_USEC=120000000", "STATUS=starting: not ready to serve yet"]]
    await naps.end_one()
    assert manager.heard() == [["EXTEND_TIMEOUT_USEC=120000000"]]
    ready[0] = True
    await naps.end_one()
    assert manager.heard() == [["READY=1", "STATUS=serving"]]
    await naps.end_one()
    await naps.end_one()
    assert manager.heard() == [["WATCHDOG=1"], ["WATCHDOG=1"]]
    telling.cancel()
    notice.stopping()
    assert manager.heard() == [["STOPPING=1", "STATUS=stopping"]]


async def test_the_watchdog_is_fed_by_the_loop_in_half_its_time_also_while_not_ready(manager: Manager) -> None:
    ready, naps = [True], Naps()
    telling = asyncio.create_task(
        ServiceNotice(manager.environment, pid=PID).follow(lambda: ready[0], sleep=naps.sleep)
    )
    await settle()
    ready[0] = False
    await naps.end_one()
    ready[0] = True
    await naps.end_one()
    assert manager.heard()[1:] == [["WATCHDOG=1", "STATUS=not ready: see /readyz"], ["WATCHDOG=1", "STATUS=serving"]]
    assert naps.asked == [0.3, 0.3, 0.3]
    telling.cancel()


async def test_a_loop_that_stands_still_feeds_nothing(manager: Manager) -> None:
    environment = {**manager.environment, "WATCHDOG_USEC": "2000"}
    notice = ServiceNotice(environment, pid=PID)
    telling = asyncio.create_task(notice.follow(lambda: True))
    async with asyncio.timeout(5):
        while ["WATCHDOG=1"] not in manager.heard():
            await asyncio.sleep(0.001)
    manager.heard()
    stand_until = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < stand_until:
        pass
    assert manager.heard() == []
    telling.cancel()


@pytest.mark.parametrize("other", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}])
async def test_a_watchdog_that_is_another_s_or_off_is_not_fed(manager: Manager, other: dict[str, str]) -> None:
    naps = Naps()
    notice = ServiceNotice({**manager.environment, **other}, pid=PID)
    telling = asyncio.create_task(notice.follow(lambda: True, sleep=naps.sleep))
    await settle()
    await naps.end_one()
    assert manager.heard() == [["READY=1", "STATUS=serving"]]
    assert naps.asked == [LOOK_S, LOOK_S]
    telling.cancel()


async def test_without_a_service_manager_nothing_is_opened_and_nothing_told() -> None:
    before = len(os.listdir("/proc/self/fd"))
    notice = ServiceNotice({"WATCHDOG_USEC": "nonsense"})
    await notice.follow(lambda: False)
    notice.stopping()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_manager_that_went_away_is_told_of_once_and_stops_nobody(tmp_path: Path) -> None:
    manager, naps = Manager(str(tmp_path / "notify")), Naps()
    telling = asyncio.create_task(ServiceNotice(manager.environment, pid=PID).follow(lambda: True, sleep=naps.sleep))
    await settle()
    manager.close()
    with capture_logs() as said:
        await naps.end_one()
        await naps.end_one()
    assert [row["event"] for row in said] == ["service.notice_lost"]
    assert not telling.done()
    telling.cancel()


async def test_a_manager_that_does_not_read_makes_nobody_wait(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notice = ServiceNotice(manager.environment, pid=PID)
    async with asyncio.timeout(5):
        for _ in range(2_000):  # more than the kernel queues (net.unix.max_dgram_qlen)
            notice.stopping()
            notice._tell("WATCHDOG=1", status="")
    manager.close()


@pytest.mark.parametrize("named", ["vsock:2:9999", "run/notify", "@", "/"])
def test_a_socket_that_is_no_path_and_no_name_is_refused(named: str) -> None:
    with pytest.raises(ConfigError, match=f"NOTIFY_SOCKET '{named}' is neither a path nor @name"):
        ServiceNotice({"NOTIFY_SOCKET": named})


@pytest.mark.parametrize("microseconds", ["", "-1", "1.5", "²"])
def test_a_watchdog_that_is_no_number_is_refused(microseconds: str) -> None:
    with pytest.raises(ConfigError, match="WATCHDOG_USEC"):
        ServiceNotice({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": microseconds})
