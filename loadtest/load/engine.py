"""`python -m loadtest.load.engine publish|read|complete PLAN`: the clients of a Locust worker, without gevent.

Standard input, one JSON object a line: {"users": [N, ...]} says how many users of each row of the campaign there are
now, {"begin": true} that its stages begin, {"end": true} that nothing more is sent. Standard output: {"ready": true},
then each second what was done in it ({"second": T, "done": [{"method": ..., "name": ..., ...}], "cpu_share": ...,
"lag_p99_ms": ...}), and last {"ended": {...}}. `complete` reads everything once more when the load is over.

How clients sign in is in the environment (loadtest.login).
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CampaignFailed
from loadtest.groups.member_process import need
from loadtest.load.campaign import EXIT_CANNOT_RUN
from loadtest.load.engine_values import FLUSH_S, Plan, WallClock, read_plan
from loadtest.load.kafka_publisher import KafkaPublisher
from loadtest.load.publisher import Publisher, come_first, first_thread
from loadtest.load.reader import readers_of
from loadtest.load.samples_core import Done, Samples
from loadtest.load.sources import FAILURES, ends_of
from loadtest.load.wire_publisher import WirePublisher
from loadtest.login import from_environment

NAP_S_MAX: Final = 0.01
SAME_ENDS_S: Final = 2.0


class Tally:
    """What this engine tells each second, of itself too."""

    def __init__(self, clock: WallClock, *queues: deque[Done]) -> None:
        self.lags = Samples()
        self._clock, self._queues = clock, queues
        self._cpu_s, self._at = time.process_time(), time.monotonic()

    def tell(self) -> None:
        """Tell what was done since the last time."""
        cpu_s, at = time.process_time(), time.monotonic()
        share = (cpu_s - self._cpu_s) / max(1e-3, at - self._at)
        self._cpu_s, self._at = cpu_s, at
        done = Samples.taken(*self._queues).items()
        rows = [{"method": method, "name": name, **samples.told()} for (method, name), samples in done]
        lags, self.lags = self.lags, Samples()
        row = {"second": self._clock.now_ns() / 1e9, "done": rows, "cpu_share": round(share, 4)}
        say(row | {"lag_p99_ms": lags.quantile_ms(0.99), "lag_max_ms": lags.max_ms})


class PublishEngine:
    """All publishers of a worker: one thread watches the clock and sends, this one listens and tells.

    All of its threads come first: one that has the interpreter's lock and no core would keep the sender waiting.
    """

    def __init__(self, plan: Plan) -> None:
        self._campaign = plan.campaign
        self._clock = WallClock()
        self._users: list[int] = [0] * len(plan.campaign.users)
        self._began = 0.0
        self._ended = threading.Event()
        (plan.folder / "histories").mkdir(exist_ok=True)
        self._loop = asyncio.new_event_loop()
        first_thread(self._loop.run_forever).start()
        rows = plan.rows()
        self._rows: list[tuple[int, int, Publisher]] = [
            (row, sum(row == other for other, _, _ in rows), self._made(plan, row, region)) for row, _, region in rows
        ]
        self._tally = Tally(self._clock, *(publisher.done for _, _, publisher in self._rows))

    def _made(self, plan: Plan, row: int, region: str) -> Publisher:
        if plan.campaign.users[row].kind == "kafka":
            return KafkaPublisher(plan, row, region, self._clock)
        return WirePublisher(plan, row, region, self._clock, loop=self._loop)

    def run(self, commands: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Send until told to end, then wait for the answers."""
        come_first()
        sender = first_thread(self._send)
        sender.start()
        for command in each_second(commands):
            if not sender.is_alive():
                raise RuntimeError("the thread that sends has ended")  # its traceback stands above
            self._users = command.get("users", self._users)
            if "begin" in command:
                self._began = time.monotonic()
            if "end" in command:
                break
            if not command:
                self._tally.tell()
        self._ended.set()
        sender.join()
        deadline = time.monotonic() + FLUSH_S
        left = sum(publisher.finish(max(0.0, deadline - time.monotonic())) for _, _, publisher in self._rows)
        self._tally.tell()
        sent = sum(publisher.sent for _, _, publisher in self._rows)
        say({"ended": {"sent": sent, "unanswered": left, "clock_stepped_ms": self._clock.stepped_ms()}})

    def _send(self) -> None:
        in_flight_max = self._campaign.generator.in_flight_max
        while not self._ended.is_set():
            now_ns = self._clock.now_ns()
            rate = self._campaign.rate_of_one_user(time.monotonic() - self._began) if self._began else 0.0
            next_ns = now_ns + NAP_S_MAX * 1e9
            for row, sharing, publisher in self._rows:
                publisher.arrivals.set_rate(rate * self._users[row] / sharing, now_ns)
                for due_ns in publisher.arrivals.due(now_ns):
                    self._tally.lags.add(max(0.0, (self._clock.now_ns() - due_ns) / 1e6))
                    publisher.send(due_ns, in_flight_max=in_flight_max)
                next_ns = min(next_ns, publisher.arrivals.next_ns)
            time.sleep(max(0.0, next_ns - self._clock.now_ns()) / 1e9)


class ReadEngine:
    """All readers of a worker."""

    def __init__(self, plan: Plan, *, is_final: bool = False) -> None:
        """Take what is read. Raises CampaignFailed: a client is not installed."""
        self._plan = plan
        self._is_final = is_final
        self._clock = WallClock()
        need(row.kind for row in plan.campaign.readers)
        (plan.folder / "histories").mkdir(exist_ok=True)
        self._readers = readers_of(plan, self._clock, is_final=is_final)
        self._tally = Tally(self._clock, *(reader.done for reader in self._readers))

    def run(self, commands: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Read until told to end, and then on until everything is here, or for checks.settle."""
        for reader in self._readers:
            reader.start()
        for command in each_second(commands):
            self._check()
            if "end" in command:
                break
            if not command:
                self._tally.tell()
        for reader in self._readers:
            reader.hurry()
        has_all = self._settle()
        self._check()
        for reader in self._readers:
            reader.stop()
        self._tally.tell()
        say({"ended": {"has_all": has_all, "clock_stepped_ms": self._clock.stepped_ms()}})

    def _check(self) -> None:
        if dead := [reader.name for reader in self._readers if not reader.is_alive]:
            raise RuntimeError(f"the thread that reads as {dead[0]} has ended")  # its traceback stands above

    def _settle(self) -> bool:
        """Wait until every reader has what any region holds, and nothing more comes; return whether it is so.

        A complete read may take as long as it gets on: after a day of load there is much to read.
        """
        plan = self._plan
        bootstraps = [plan.bootstrap(region) for region in plan.endpoints["regions"]]
        places = list({place: None for reader in self._readers for place in reader.progress.next})
        deadline = time.monotonic() + plan.campaign.checks.settle_s
        before: dict[tuple[str, int], int] = {}
        read_before = 0
        while time.monotonic() < deadline:
            ends = ends_of(bootstraps, plan.settings, places)
            is_told = len(ends) == len(places)  # else nothing says how much there is
            if is_told and ends == before and all(reader.progress.has(ends) for reader in self._readers):
                return True
            before = ends
            read = sum(sum(reader.progress.next.values()) for reader in self._readers)
            if self._is_final and read > read_before:
                read_before, deadline = read, time.monotonic() + plan.campaign.checks.settle_s
            time.sleep(SAME_ENDS_S)
            self._tally.tell()
        return False


def each_second(commands: queue.SimpleQueue[dict[str, Any]]) -> Any:
    """Yield commands as they come, and {} each second."""
    wanted = time.monotonic() + 1
    while True:
        try:
            yield commands.get(timeout=max(0.0, wanted - time.monotonic()))
        except queue.Empty:
            wanted += 1
            yield {}


def say(document: dict[str, Any]) -> None:
    """Print one JSON line at once."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _listen(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"end": True})  # whoever commanded is gone


def main() -> int:
    """Run one engine."""
    role, path = sys.argv[1:]
    sys.setswitchinterval(0.0005)  # the thread that watches the clock must not wait 5 ms for its turn
    plan = read_plan(Path(path), from_environment())
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    try:
        engine: PublishEngine | ReadEngine
        if role == "publish":
            engine = PublishEngine(plan)
        else:
            engine = ReadEngine(plan, is_final=role == "complete")
    except (*FAILURES, CampaignFailed) as error:
        say({"failed": f"the {role} engine could not begin: {error}"})
        return EXIT_CANNOT_RUN
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    say({"ready": True})
    engine.run(commands)
    return 0


if __name__ == "__main__":
    sys.exit(main())
