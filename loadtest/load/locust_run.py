"""What a campaign is for Locust: user classes, a shape, engines as child processes, and their counts as its statistics.

Rule 1: a user of Locust is one of those who share the engine's stream of arrivals; the engine is told how many there
        are. So spawning, weights and the web page are Locust's, and when a record is due is not.
Rule 2: after the last stage nobody is due any more; engines wait for what is under way, and then the run ends.
Rule 3: a region is a property of the process: each worker's clients connect in the regions it was given, and users of
        a row come to workers in whose regions it publishes, else what they offer would be missing.
Rule 4: of several workers of a region one has its readers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import gevent
import locust.runners
import locust.stats
from gevent import subprocess
from gevent.event import Event
from locust import LoadTestShape, User, events, task
from locust.dispatch import UsersDispatcher
from locust.env import Environment
from locust.runners import MasterRunner, WorkerNode, WorkerRunner
from locust.stats import RequestStats, StatsEntry

from loadtest.child_process import PYTHON, guarded
from loadtest.load.campaign import EXIT_CANNOT_RUN, Campaign
from loadtest.load.campaign_file import CampaignError, find, load
from loadtest.load.engine_values import written
from loadtest.load.live_core import Row, live_rows
from loadtest.load.samples_core import Samples, bucket_ms
from loadtest.load.web import add_sla_tab

READY_S: Final = 90
SPAWN_PER_S: Final = 1_000.0
NAP_S: Final = 1.0
POLL_S: Final = 0.1
HEARTBEATS_MISSED_MAX: Final = 10  # Locust calls a worker lost after three seconds; a busy machine needs longer
SECONDS_MAX: Final = 10_000  # that the page judges the generator by
END, SETTLED, NAMED, SECOND = "campaign_end", "campaign_settled", "campaign_worker", "campaign_second"


def _file() -> Path:
    """Return the campaign of this process: Locust wants its classes before it reads its command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--campaign", default=os.environ.get("GEORELAY_LOAD_CAMPAIGN", "smoke"))
    return find(parser.parse_known_args()[0].campaign)


def _load_or_end() -> Campaign:
    try:
        return load(_file())
    except CampaignError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(EXIT_CANNOT_RUN) from error


def make_users() -> dict[str, type[User]]:
    """Return a class for each row of the campaign's users."""
    names = {f"{users.kind.title()}User{row}": (row, users) for row, users in enumerate(_load_or_end().users)}
    return {
        name: type(name, (EngineUser,), {"row": row, "weight": users.weight}) for name, (row, users) in names.items()
    }


def make_shape() -> type[LoadTestShape]:
    """Return the shape of the campaign's stages."""
    return type("CampaignShape", (StageShape,), {"campaign": _load_or_end()})


class EngineUser(User):
    """One of those for whom an engine sends."""

    abstract = True
    row = 0

    def on_start(self) -> None:
        """Count it."""
        run_of(self.environment).count(self.row, 1)

    def on_stop(self) -> None:
        """Count it no more."""
        run_of(self.environment).count(self.row, -1)

    @task
    def be_there(self) -> None:
        """Do nothing: the engine does it."""
        gevent.sleep(NAP_S)


class StageShape(LoadTestShape):
    """So many users as the stage says; the last ones stay until everything is settled."""

    abstract = True
    campaign: Campaign
    _is_begun = False

    def tick(self) -> tuple[int, float] | None:
        """Return users and how fast they come, None when the run is over."""
        assert self.runner is not None, "Locust sets it"
        run = run_of(self.runner.environment)
        if not self._is_begun:
            self._is_begun = True
            run.wait_for_workers()
            self.start_time = time.perf_counter()
        stage = self.campaign.stage_at(time.perf_counter() - self.start_time)
        if stage is None:
            return None if run.is_settled() else (self.campaign.stages[-1].users, SPAWN_PER_S)
        return stage.users, SPAWN_PER_S


class RegionDispatcher(UsersDispatcher):
    """Spreads the users of each row over the workers in whose regions it publishes, region by region.

    Locust has no hook for that: both methods are its own (of 2.47), held against it by test_load_workers.py.
    """

    run: LocustRun

    def _add_users_on_workers(self) -> dict[str, dict[str, int]]:
        goal = min(self._current_user_count + self._user_count_per_dispatch_iteration, self._target_user_count)
        for node, user in self._given(self._user_generator, self._users_on_workers, goal - self._current_user_count):
            self._current_user_count += 1
            self._active_users.append((node, user))
        return self._users_on_workers

    def _distribute_users(self, target_user_count: int) -> Any:
        """Return what Locust wants when a worker is lost or new: everything as if it began now."""
        users, names = self._user_gen(), [each.__name__ for each in self._original_user_classes]
        on_workers = {node.id: dict.fromkeys(names, 0) for node in self._worker_nodes}
        active = list(self._given(users, on_workers, target_user_count))
        return on_workers, users, itertools.cycle(self._worker_nodes), active

    def _given(
        self, users: Iterator[str | None], of_workers: dict[str, dict[str, int]], count: int
    ) -> Iterator[tuple[WorkerNode, str]]:
        """Give so many users to workers, and yield to whom each went."""
        nodes = {node.id: node for node in self._worker_nodes}
        rows = {each.__name__: int(getattr(each, "row", 0)) for each in self._original_user_classes}
        serving = {name: self.run.serving(row, nodes) for name, row in rows.items()}
        for name in itertools.islice(users, count):
            assert name is not None, "every row has a weight"
            client = _fewest(serving[name], of_workers, name)
            of_workers[client][name] += 1
            yield nodes[client], name


def _fewest(clients: Iterable[str], of_workers: dict[str, dict[str, int]], name: str) -> str:
    """Return the first worker of those with the fewest users of a name, and of these with the fewest of all."""
    return min(clients, key=lambda each: (of_workers[each][name], sum(of_workers[each].values())))


class EngineProcess:
    """One engine."""

    def __init__(self, role: str, plan: Path, run: LocustRun) -> None:
        self.role = role
        self.is_ready, self.has_ended = Event(), Event()
        self.failure = ""
        self._run = run
        self._process = subprocess.Popen(
            guarded(PYTHON, "-m", "loadtest.load.engine", role, plan),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        gevent.spawn(self._follow)

    def send(self, command: dict[str, Any]) -> None:
        """Tell it something; an engine that is gone is said elsewhere."""
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return

    def _follow(self) -> None:
        try:
            if not self._heard_to_the_end():
                self.failure = self.failure or f"the {self.role} engine ended with {self._process.wait()}"
        except (OSError, ValueError, KeyError) as error:  # a full disk, or a line that an engine could not finish
            self.failure = f"what the {self.role} engine did cannot be kept: {error!r}"
            self._process.kill()  # it must not wait for somebody who reads what it says
        finally:
            self.is_ready.set()
            self.has_ended.set()
        if self.failure:
            self._run.trouble(self.failure)

    def _heard_to_the_end(self) -> bool:
        """Take in what it says; return whether it came to its last words."""
        ended = False
        for line in self._process.stdout:
            row = json.loads(line)
            if "ready" in row:
                self.is_ready.set()
            elif "failed" in row:
                self.failure = row["failed"]
            elif "ended" in row:
                ended = True
                self._run.engine_ended(self.role, row["ended"])
            else:
                self._run.take(self.role, row)
        return ended


class LocustRun:
    """What one process of Locust does for a campaign: alone, as master, or as worker."""

    def __init__(self, environment: Environment) -> None:
        options: Any = environment.parsed_options
        self.campaign = _load_or_end()
        self.results = Path(options.results)
        self.worker = options.load_worker or socket.gethostname().partition(".")[0]
        self._environment = environment
        self._endpoints = Path(options.endpoints)
        self._regions = [name for name in options.load_regions.split(",") if name]
        self._reads = not options.load_publishers_only
        self._users = [0] * len(self.campaign.users)
        self._engines: list[EngineProcess] = []
        self._is_ending = False
        self._workers_settled: set[str] = set()
        self._workers_known: set[str] = set()
        self._named: dict[str, dict[str, Any]] = {}  # name and regions of every worker, by its client's id
        self._began_s = 0.0
        self._seconds: deque[dict[str, Any]] = deque(maxlen=SECONDS_MAX)
        self._trouble: list[dict[str, Any]] = []
        self.results.mkdir(parents=True, exist_ok=True)
        if not isinstance(environment.runner, WorkerRunner) and not any(self.results.glob("*.toml")):
            shutil.copyfile(_file(), self.results / f"{self.campaign.name}.toml")  # who judges the folder needs it

    def start_engines(self) -> None:
        """Start them and wait until they are connected. Raises CampaignError."""
        try:
            known = list(json.loads(self._endpoints.read_text(encoding="utf-8"))["regions"])
        except (OSError, ValueError, KeyError) as error:
            raise CampaignError(
                f"{self._endpoints}: no mesh there: start one (`georelay up`) or use `georelay load run`"
            ) from error
        regions = self._regions or list(self.campaign.topology.regions)
        if unknown := sorted(set(regions) - set(known)):
            raise CampaignError(f"the mesh of {self._endpoints} has no region {unknown[0]}; it has {', '.join(known)}")
        plan = written(
            self.results / f"plan-{self.worker}.json",
            campaign=_file(),
            endpoints=self._endpoints,
            regions=regions,
            folder=self.results,
            worker=self.worker,
            reads=self._reads,
        )
        self._engines = [EngineProcess(role, plan, self) for role in ("publish", *(("read",) if self._reads else ()))]
        for engine in self._engines:
            if not engine.is_ready.wait(READY_S) or engine.failure:
                raise CampaignError(engine.failure or f"the {engine.role} engine is not ready after {READY_S} s")
        if isinstance(self._environment.runner, WorkerRunner):
            told = {"worker": self.worker, "regions": regions, "reads": self._reads}
            self._environment.runner.send_message(NAMED, told)

    def wait_for_workers(self) -> None:
        """Wait until the engines of every worker are ready; a master without all of them makes an invalid run."""
        runner = self._environment.runner
        if not isinstance(runner, MasterRunner):
            return
        expected = int(getattr(self._environment.parsed_options, "expect_workers", 1))
        with gevent.Timeout(READY_S, False):
            while len(self._named) < expected:
                gevent.sleep(POLL_S)
        if len(self._named) < expected:
            self.trouble(f"{len(self._named)} of {expected} workers were ready after {READY_S} s")
        for row, users in enumerate(self.campaign.users):
            if not self._in_regions_of(row, self._named):
                where = ", ".join(users.regions) or "any region"
                self.trouble(f"no worker is in {where}: what users[{row}] offer is missing")
        for region in self.campaign.topology.regions:
            here = [each for each in self._named.values() if region in each["regions"]]
            is_read = any(not row.regions or region in row.regions for row in self.campaign.readers)
            if not here and (is_read or any(not row.regions or region in row.regions for row in self.campaign.users)):
                self.trouble(f"no worker is in {region}: what its clients do is missing")
            elif is_read and not any(each["reads"] for each in here):
                self.trouble(f"no worker in {region} reads: give one of them its readers")

    def begin(self) -> None:
        """The first stage begins now."""
        self._began_s = time.time()
        if not isinstance(self._environment.runner, WorkerRunner):
            self._write("began.json", {"wall_ns": time.time_ns()})
        for engine in self._engines:
            engine.send({"begin": True})
        if isinstance(self._environment.runner, MasterRunner):
            gevent.spawn(self._watch_workers)

    def count(self, row: int, more: int) -> None:
        """There is one more user of a row, or one less."""
        self._users[row] += more
        for engine in self._engines:
            engine.send({"users": self._users})

    def is_settled(self) -> bool:
        """End the load if it was not ended; return whether everything under way has come."""
        runner = self._environment.runner
        if not self._is_ending:
            self._is_ending = True
            self.end()
            if isinstance(runner, MasterRunner):
                runner.send_message(END)
        if isinstance(runner, MasterRunner):
            return self._workers_settled >= self._workers_alive()
        return all(engine.has_ended.is_set() for engine in self._engines)

    def end(self) -> None:
        """Publishers first: readers wait for what they left."""
        gevent.spawn(self._end)

    def worker_named(self, client: str, told: dict[str, Any]) -> None:
        """Note what a worker is called in the results, and its regions."""
        self._named[client] = told

    def serving(self, row: int, clients: Iterable[str]) -> list[str]:
        """Return who of these can have users of a row: the first worker of each region, then the second ones."""
        rank: Counter[tuple[str, ...]] = Counter()
        ranked: list[tuple[int, int, str]] = []
        for client in sorted(clients, key=self._name_of):
            regions = tuple(self._named.get(client, {}).get("regions", ()))
            ranked.append((rank[regions], len(ranked), client))
            rank[regions] += 1
        found = [client for _, _, client in sorted(ranked)]
        return self._in_regions_of(row, found) or found  # nobody can: `wait_for_workers` has said so

    def worker_settled(self, name: str) -> None:
        """Note that everything of a worker has come."""
        self._workers_settled.add(name)

    def take(self, role: str, row: dict[str, Any]) -> None:
        """Count what an engine did in a second, and keep it."""
        with (self.results / f"seconds-{self.worker}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"worker": self.worker, "role": role, **row}) + "\n")
        for done in row["done"]:
            merge(self._environment.stats, done, int(row["second"]))
        told = {"worker": self.worker, "role": role, **row, "done": []}
        self.heard(told)
        if isinstance(self._environment.runner, WorkerRunner):
            self._environment.runner.send_message(SECOND, told)

    def heard(self, second: dict[str, Any]) -> None:
        """Keep how an engine did, here or at a worker, for the page."""
        self._seconds.append(second)

    def live_rows(self) -> list[Row]:
        """Return the rows of the SLA tab."""
        totals = {
            (method, name): samples_of(entry) for (name, method), entry in self._environment.stats.entries.items()
        }
        return live_rows(
            self.campaign, totals, self._seconds, self._trouble, began_s=self._began_s or time.time(), now_s=time.time()
        )

    def engine_ended(self, role: str, told: dict[str, Any]) -> None:
        """Keep an engine's last words."""
        self._write(f"ended-{role}-{self.worker}.json", told)

    def trouble(self, what: str) -> None:
        """Note what makes the run invalid."""
        row = {"second": time.time(), "what": what}
        self._trouble.append(row)
        with (self.results / f"trouble-{self.worker}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_counts(self) -> None:
        """Write what Locust counted."""
        rows = [
            {"method": entry.method, "name": entry.name, "n": entry.num_requests, "failed": entry.num_failures}
            for entry in self._environment.stats.entries.values()
        ]
        self._write("locust.json", {"entries": rows})

    def _end(self) -> None:
        for engine in self._engines:
            engine.send({"end": True})
            engine.has_ended.wait()
        if isinstance(self._environment.runner, WorkerRunner):
            self._environment.runner.send_message(SETTLED, {"worker": self._environment.runner.client_id})

    def _in_regions_of(self, row: int, clients: Iterable[str]) -> list[str]:
        wanted = set(self.campaign.users[row].regions)
        return [each for each in clients if not wanted or wanted & set(self._named.get(each, {}).get("regions", ()))]

    def _name_of(self, client: str) -> str:
        return str(self._named.get(client, {}).get("worker", client))

    def _workers_alive(self) -> set[str]:
        runner = self._environment.runner
        assert isinstance(runner, MasterRunner), "only a master has workers"
        return {client.id for client in [*runner.clients.ready, *runner.clients.spawning, *runner.clients.running]}

    def _watch_workers(self) -> None:
        while True:
            alive = self._workers_alive()
            for name in sorted(self._workers_known - alive - self._workers_settled):
                self._workers_known.discard(name)
                self.trouble(f"the worker {self._name_of(name)} was lost: what it offered is missing")
            self._workers_known |= alive
            gevent.sleep(NAP_S)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self.results / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def merge(stats: RequestStats, done: dict[str, Any], second: int) -> None:
    """Add what an engine did in a second to Locust's statistics, as if its users had done it."""
    entry = StatsEntry(stats, done["name"], done["method"])
    entry.num_requests = done["n"] + done["failed"]
    entry.num_none_requests = entry.num_failures = done["failed"]
    entry.total_response_time = done["sum_ms"]
    entry.min_response_time, entry.max_response_time = done["min_ms"], done["max_ms"]
    entry.last_request_timestamp = second
    for bucket, count in done["buckets"]:
        entry.response_times[bucket] += count
    entry.num_reqs_per_sec[second] = entry.num_requests
    if done["failed"]:
        entry.num_fail_per_sec[second] = done["failed"]
    stats.get(done["name"], done["method"]).extend(entry)
    stats.total.extend(entry)


def samples_of(entry: StatsEntry) -> Samples:
    """Return what Locust has counted, as samples."""
    return Samples(
        n=entry.num_requests - entry.num_none_requests,
        failed=entry.num_failures,
        sum_ms=entry.total_response_time,
        min_ms=entry.min_response_time,
        max_ms=entry.max_response_time,
        buckets=Counter(entry.response_times),
    )


_RUNS: dict[int, LocustRun] = {}


def run_of(environment: Environment) -> LocustRun:
    """Return the run of a process."""
    return _RUNS[id(environment)]


def _add_options(parser: Any, **_: Any) -> None:
    group = parser.add_argument_group("georelay")
    group.add_argument("--campaign", default="smoke", help="A shipped campaign (`georelay load list`) or a .toml file.")
    group.add_argument("--endpoints", default="georelay-endpoints.json", help="The mesh, as `georelay up` wrote it.")
    group.add_argument("--results", default=f"out/load/{time.strftime('%Y%m%dT%H%M%S')}", help="Folder of the results.")
    group.add_argument("--load-regions", default="", help="Regions of this process's clients; default: all.")
    group.add_argument("--load-worker", default="", help="Name of this process in the results; unique in a run.")
    group.add_argument(
        "--load-publishers-only",
        action="store_true",
        help="This process has no readers: another worker of the same regions has them.",
    )


def _prepare(environment: Environment, **_: Any) -> None:
    locust.runners.HEARTBEAT_LIVENESS = HEARTBEATS_MISSED_MAX
    locust.stats.bucket_response_time = bucket_ms  # type: ignore[assignment]
    run = _RUNS[id(environment)] = LocustRun(environment)
    runner = environment.runner
    if environment.web_ui is not None:
        add_sla_tab(environment.web_ui, run.live_rows)
    if isinstance(runner, MasterRunner):
        environment.dispatcher_class = type("CampaignDispatcher", (RegionDispatcher,), {"run": run})
        runner.register_message(SETTLED, lambda msg, **_: run.worker_settled(msg.data["worker"]))
        runner.register_message(NAMED, lambda msg, **_: run.worker_named(msg.node_id, msg.data))
        runner.register_message(SECOND, lambda msg, **_: run.heard(msg.data))
        return
    if isinstance(runner, WorkerRunner):
        runner.register_message(END, lambda **_: run.end())
    try:
        run.start_engines()
    except CampaignError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(EXIT_CANNOT_RUN)  # in the middle of Locust's start nothing else ends it without a traceback


def _begin(environment: Environment, **_: Any) -> None:
    run_of(environment).begin()


def _count(environment: Environment, **_: Any) -> None:
    if not isinstance(environment.runner, WorkerRunner):
        run_of(environment).write_counts()
        environment.process_exit_code = 0  # records that were refused are judged with everything else


_EVENTS: Any = events  # Locust's are without types
_EVENTS.init_command_line_parser.add_listener(_add_options)
_EVENTS.init.add_listener(_prepare)
_EVENTS.test_start.add_listener(_begin)
_EVENTS.quitting.add_listener(_count)
