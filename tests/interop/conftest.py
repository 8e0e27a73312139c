"""A real mesh and real foreign clients: kcat, confluent-kafka, aiokafka, kafka-python, urllib and generated gRPC stubs.

One mesh without users and one with users serve all tests of a run; every test has topics of its own. They are of two
regions in the first tier, which is what idle brokers cost least at, and of three as soon as one test of the second tier
runs. Environment:
GEORELAY_INTEROP_RECORDS (2000) records per producer, GEORELAY_INTEROP_BROKERS (1) brokers per region.
`make interop` runs the whole campaign: 10,000 records, three brokers per region.
`new_topic` waits until every region leads the topic, so that no client spends its time on finding out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from georelay.wire.batch import BatchHeader, parse_header
from loadtest.mesh_process import MeshProcess
from tests.closing_clients import kafka
from tests.interop.foreign_clients import CLIENTS, ForeignClient, Received, Sent
from tests.interop.running_mesh import CLIENT_SECONDS_MAX, InteropMesh, eventually
from tests.interop.sign_in import ALICE, PASSWORD, USER, SignIn

REGIONS = ("us", "eu", "ap")
RECORDS = int(os.environ.get("GEORELAY_INTEROP_RECORDS", "2000"))
BROKERS_PER_REGION = int(os.environ.get("GEORELAY_INTEROP_BROKERS", "1"))
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    """Every foreign client in turn."""
    chosen: ForeignClient = request.param
    return chosen


@pytest.fixture(scope="session")
def clients() -> dict[str, ForeignClient]:
    """The foreign clients by name."""
    return {client.name: client for client in CLIENTS}


@pytest.fixture(scope="session")
def kafka_python() -> Any:
    """The module `kafka`, imported once with its own warnings off."""
    return kafka


@pytest.fixture(scope="session")
def records_per_producer() -> int:
    """How many records one producer sends."""
    return RECORDS


TALLY: list[tuple[str, str, int, dict[str, int]]] = []  # client, compression, acknowledged, read per region


@pytest.fixture(scope="session")
def tally() -> list[tuple[str, str, int, dict[str, int]]]:
    """Rows that are printed at the end of the run."""
    return TALLY


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many records each client produced and read back in each region."""
    if TALLY:
        terminalreporter.section(f"interop, {len(TALLY[0][3])} regions of {BROKERS_PER_REGION}")
    for client, compression, acknowledged, read in TALLY:
        regions = "  ".join(f"{region} {count}" for region, count in read.items())
        terminalreporter.line(f"{client:16} {compression:7} acknowledged {acknowledged:6}  read {regions}")


@pytest.fixture(scope="session")
def header_of() -> Callable[[bytes], BatchHeader]:
    """Read the header of a raw batch."""
    return parse_header


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """`eventually`, for tests."""
    return eventually


@pytest.fixture(scope="session")
def keyed_records() -> Callable[[str, int], list[Sent]]:
    """Build records of 40 keys; values are compressible and all different."""

    def build(stem: str, count: int) -> list[Sent]:
        return [(f"key{number * 7919 % 40}", f"{stem} {number} " + "lorem ipsum " * 8) for number in range(count)]

    return build


@pytest.fixture(scope="session")
def check_received() -> Callable[[list[Sent], list[Received]], None]:
    """Compare what one producer sent with what a region delivered: complete, dense, in order, one partition per key."""

    def check(sent: list[Sent], received: list[Received]) -> None:
        assert len(received) == len(sent)
        partition_of: dict[str, int] = {}
        for partition, _, key, _ in received:
            assert partition_of.setdefault(key, partition) == partition, key
        for partition in set(partition_of.values()):
            here = [(offset, key, value) for number, offset, key, value in received if number == partition]
            wanted = [(key, value) for key, value in sent if partition_of.get(key) == partition]
            assert here == [(offset, key, value) for offset, (key, value) in enumerate(wanted)]

    return check


@pytest.fixture(scope="package")
def regions(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The regions of the meshes: two, and a third one where tests of the second tier run."""
    return REGIONS[:2] if request.config.getoption("markexpr") == "not slow" else REGIONS


@pytest.fixture(scope="package")  # no longer: idle brokers cost the tests of other folders CPU
def mesh(tmp_path_factory: pytest.TempPathFactory, regions: tuple[str, ...]) -> Iterator[InteropMesh]:
    """All regions, without users."""
    yield from _run_mesh(tmp_path_factory.mktemp("open"), regions, BROKERS_PER_REGION, None)


@pytest.fixture(scope="package")  # no longer: idle brokers cost the tests of other folders CPU
def guarded_mesh(tmp_path_factory: pytest.TempPathFactory, regions: tuple[str, ...]) -> Iterator[InteropMesh]:
    """Regions of one broker that only alice may use."""
    yield from _run_mesh(tmp_path_factory.mktemp("guarded"), regions, 1, ALICE)


def _run_mesh(
    directory: Path, regions: tuple[str, ...], brokers_per_region: int, sign_in: SignIn | None
) -> Iterator[InteropMesh]:
    arguments = () if sign_in is None else ("--user", f"{sign_in.user}:{sign_in.password}")
    process = MeshProcess(
        directory, regions=",".join(regions), brokers_per_region=brokers_per_region, arguments=arguments
    )
    asyncio.run(process.__aenter__())
    try:
        yield InteropMesh(process, sign_in)
    finally:
        process.stop()


@pytest.fixture(scope="session")
def alice() -> SignIn:
    """The one user of the guarded mesh."""
    return ALICE


@pytest.fixture(params=["no credentials", "wrong password", "unknown user", "empty password"])
def stranger(request: pytest.FixtureRequest) -> SignIn | None:
    """Everybody who must stay outside, None for no credentials."""
    strangers = {
        "no credentials": None,
        "wrong password": SignIn(USER, PASSWORD + "x"),
        "unknown user": SignIn("mallory", PASSWORD),
        "empty password": SignIn(USER, ""),
    }
    return strangers[request.param]


@pytest.fixture(scope="session")
def user_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stubs that a user generated from the public contracts, in a process of its own."""
    folder = tmp_path_factory.mktemp("stubs")
    outputs = (f"--python_out={folder}", f"--grpc_python_out={folder}")
    for root, contract in ((REPOSITORY / "proto", "broker.proto"), (REPOSITORY / "proto/georelay/v1", "admin.proto")):
        command = (sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *outputs, contract)
        subprocess.run(command, check=True, timeout=CLIENT_SECONDS_MAX)
    return folder
