"""What TLS with SASL costs: batched produce and single records, plain and with TLS and SCRAM-SHA-512, in turns.

The secured mesh has TLS everywhere (between its brokers too), users and access lists; its clients sign in as a user
that was made and granted over HTTP. Both meshes run all the time; only the brokers that are worked with are counted.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from loadtest.bench import single
from loadtest.bench.batched import RUNS, Way, ask, create_topic, in_turns
from loadtest.bench.client_settings import PLAIN, Settings, scram_settings
from loadtest.bench.tls import compared
from loadtest.mesh_process import MeshProcess

USER: Final = "bench"
ADMINISTRATOR: Final = "root"
BATCHED: Final = "secured-batched"
SINGLE: Final = tuple(f"secured-single-{number}" for number in range(single.TOPICS))
KNOWN_SECONDS_MAX: Final = 30
NAMES: Final = {"plain": "plain           ", "secured": "TLS + SCRAM-512 "}


def run(plain: MeshProcess, *, runs: int = RUNS) -> list[str]:
    """Return report lines: medians of `runs` runs each."""
    return asyncio.run(_run(plain, runs))


async def _run(plain: MeshProcess, runs: int) -> list[str]:
    secured = MeshProcess(
        plain.directory.with_name("secured-on"),
        regions="us",
        brokers_per_region=3,
        arguments=("--tls",),
        user=(ADMINISTRATOR, secrets.token_urlsafe(16)),
    )
    async with secured:
        return await asyncio.to_thread(_measure, plain, secured, runs)


def _measure(plain: MeshProcess, secured: MeshProcess, runs: int) -> list[str]:
    settings = {"plain": PLAIN, "secured": make_user(secured)}
    meshes = {"plain": plain, "secured": secured}
    for mesh in meshes.values():
        for topic in SINGLE:
            create_topic(mesh, topic, 1)
    _wait_until_known(secured, settings["secured"])
    time.sleep(single.SETTLE_SECONDS)
    ways = [
        Way(label=f"batched produce, {NAMES[name]}", mesh=mesh, topic=BATCHED, settings=settings[name])
        for name, mesh in meshes.items()
    ]
    return [*compared(ways, in_turns(ways, runs), "TLS + SCRAM-512"), *_single(meshes, settings, runs)]


def _single(meshes: Mapping[str, MeshProcess], settings: Mapping[str, Settings], runs: int) -> list[str]:
    figures: dict[str, list[single.Figure]] = {name: [] for name in meshes}
    notes = []
    for _ in range(runs):
        for name, mesh in meshes.items():
            found, note = single.run_once(
                mesh, list(SINGLE), partitions=1, seconds=single.SECONDS, settings=settings[name]
            )
            figures[name].append(found["us"])
            notes.append(f"  {NAMES[name]} {note}")
    what = single.what(list(SINGLE), 1)
    return [*(single.line_of(f"{what}, {NAMES[name]}", figures[name]) for name in meshes), *notes]


def make_user(mesh: MeshProcess) -> Settings:
    """Make the user of the benchmark over HTTP, grant what it needs, and return how its clients connect."""
    password = secrets.token_urlsafe(16)
    ask(mesh, "/v1/users", {"name": USER, "password": password})
    wanted = [("topic", "secured-", operation) for operation in ("read", "write")] + [("group", USER, "read")]
    entries = [
        {"principal": f"User:{USER}", "resource": resource, "name": name, "pattern": "prefixed", "operation": operation}
        for resource, name, operation in wanted
    ]
    ask(mesh, "/v1/acls", {"entries": entries})
    return scram_settings(mesh, USER, password)


def _wait_until_known(mesh: MeshProcess, settings: Settings) -> None:
    """Wait until every broker lets the user see a topic. Raises RuntimeError."""
    deadline = time.monotonic() + KNOWN_SECONDS_MAX
    credentials = base64.b64encode(f"{USER}:{settings['sasl.password']}".encode()).decode()
    for admin in mesh.endpoints["regions"]["us"]["admin"]:
        url = f"{mesh.scheme}://{admin}/v1/topics/{SINGLE[0]}"
        request = urllib.request.Request(url, headers={"authorization": f"Basic {credentials}"})  # noqa: S310
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5, context=mesh.ssl_context):  # noqa: S310 - own mesh
                    break
            except urllib.error.HTTPError as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{admin} does not know the user of the benchmark: {error}") from error
            time.sleep(0.2)
