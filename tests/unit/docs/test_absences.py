"""What ARCHITECTURE.md says does not exist, looked for; and that its rooms import each other as its table says."""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from georelay.errors import ConfigError
from region.config import load_config
from tests.tiers import first

WRITES = frozenset(
    {
        *("write_bytes", "write_text", "pwrite", "pwritev", "writev", "posix_fallocate"),
        *("fsync", "fdatasync", "ftruncate", "truncate"),
        *("rename", "replace", "unlink", "rmtree", "remove", "mkdir", "makedirs"),
    }
)
# str.replace and dataclasses.replace share a name with Path.replace; set.remove and list.remove with os.remove.
AMBIGUOUS = frozenset({"replace", "remove", "truncate"})
CALLS_OF_WRITES = re.compile(rf"\b(?:open|{'|'.join(sorted(WRITES))})\(")
RECORD_PATH = ("raft", "multiraft", "topics", "controller", "kafka", "api", "broker")

ROOT_ROOMS = ("georelay", "mesh", "region", "gateway", "sla", "loadtest", "deploy")
FOLDERS_OF_ROOMS = ("mesh", "region")  # each of their folders is a room
EVERYTHING = "everything"  # in the table: a room that puts together all of its own tree, or tests it

# An import as `ruff format` writes it, alone in its lines.
IMPORT = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^()]*\)|[\w., ]+)", re.M)
COMMENT = re.compile(r" *#.*")


@dataclass(frozen=True, eq=False)
class Module:
    """A file of the product; to parse all of them takes longer than all the tests of this file need."""

    name: str
    text: str

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """What it imports: modules, and names of modules."""
        found = set()
        for module, names in IMPORT.findall(COMMENT.sub("", self.text)):
            listed = [name.partition(" as ")[0].strip() for name in names.strip("()").split(",") if name.strip()]
            found |= {module, *(f"{module}.{name}" for name in listed)} if module else set(listed)
        return frozenset(found)

    @functools.cached_property
    def tree(self) -> ast.Module:
        gc.collect(0)
        gc.disable()  # a finalizer that runs inside ast.parse breaks its depth count (CPython 3.11)
        try:
            return ast.parse(self.text)
        finally:
            gc.enable()


@pytest.fixture(scope="module")
def modules(python_files: list[Path], root: Path) -> Callable[..., list[Module]]:
    """Return a reader of the modules below some folders."""
    read = [(path.relative_to(root), Module(str(path.relative_to(root)), path.read_text())) for path in python_files]

    def below(*folders: str) -> list[Module]:
        return [module for path, module in read if any(path.is_relative_to(folder) for folder in folders)]

    return below


def imports_of(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("rooms", first(1, [["region/broker", "sdk/georelay/cli"], ["sdk", *ROOT_ROOMS[1:]]]), ids=len)
def test_imports_that_are_read_from_the_text_miss_none_of_the_program(
    modules: Callable[..., list[Module]], rooms: list[str]
) -> None:
    for module in modules(*rooms):
        assert imports_of(module.tree) <= module.imports, module.name  # a program in a string may be more


def importers(modules: list[Module], *prefixes: str) -> list[str]:
    return [
        module.name
        for module in modules
        if any(found == prefix or found.startswith(f"{prefix}.") for found in module.imports for prefix in prefixes)
    ]


def file_writes(module: Module) -> set[str]:
    found: set[str] = set()
    if not CALLS_OF_WRITES.search(module.text):
        return found
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            found.add("open")
        elif isinstance(node.func, ast.Attribute):
            owner = node.func.value
            of_os = isinstance(owner, ast.Name) and owner.id in {"os", "shutil"}
            if node.func.attr in WRITES and (of_os or node.func.attr not in AMBIGUOUS):
                found.add(node.func.attr)
    return found


def test_only_the_log_writes_files_on_the_path_of_a_record(modules: Callable[..., list[Module]]) -> None:
    rooms = [f"region/{room}" for room in RECORD_PATH] + ["mesh/replication"]
    assert {module.name: found for module in modules(*rooms) if (found := file_writes(module))} == {}


def test_the_search_for_file_writes_finds_the_ones_of_the_log(modules: Callable[..., list[Module]]) -> None:
    found = {call for module in modules("region/log") for call in file_writes(module)}
    assert {"fdatasync", "ftruncate"} <= found


def test_nothing_between_produce_fetch_and_mirror_reads_or_unpacks_a_record(
    modules: Callable[..., list[Module]],
) -> None:
    hot = modules("region/kafka", "region/topics", "region/multiraft", "region/log", "region/raft", "mesh/replication")
    readers = ("georelay.wire.records", "georelay.wire.compression", "georelay.wire.batch.iterate_records")
    found = importers(hot, *readers, "lz4", "zstandard", "cramjam", "gzip", "zlib")
    # Links pack whole frames and the manifest a state machine's bytes, never a record; the look-up by time reads one
    # batch.
    packers = ["mesh/replication/frame_packing.py", "region/log/manifest.py"]
    assert sorted(found) == [*packers, "region/topics/hosted_stream.py"]


def test_the_gateway_knows_no_protobuf(modules: Callable[..., list[Module]]) -> None:
    assert importers(modules("gateway"), "google.protobuf", "region", "broker_pb2") == []


def constructors(modules: list[Module], name: str) -> list[str]:
    return [
        module.name
        for module in modules
        if f"{name}(" in module.text
        and any(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name
            for n in ast.walk(module.tree)
        )
    ]


def test_hosts_are_those_of_the_region_and_of_mesh_control(modules: Callable[..., list[Module]]) -> None:
    places = constructors(modules("mesh", "region", "gateway", "sla", "loadtest"), "Host")
    assert sorted(places) == ["region/broker/core.py", "region/control/replica.py"]


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ("ControllerService", "region/broker/core_parts.py"),
        ("LocalCluster", "region/broker/core.py"),
        ("BrokerCore", "region/app.py"),
        ("Edge", "region/app.py"),
        ("Recorder", "region/broker/traces.py"),
    ],
)
def test_broker_parts_are_composed_in_one_place(modules: Callable[..., list[Module]], part: str, place: str) -> None:
    assert constructors(modules("mesh", "region", "gateway", "sla", "loadtest"), part) == [place]


def test_services_know_the_broker_only_through_ports(modules: Callable[..., list[Module]]) -> None:
    services = modules("region/kafka", "region/api")
    assert importers(services, "region.topics", "region.raft", "region.multiraft", "region.broker") == []


def test_brokers_never_import_a_kafka_client_or_spark(modules: Callable[..., list[Module]]) -> None:
    product = modules("sdk", "mesh", "region", "gateway")
    assert importers(product, "kafka", "aiokafka", "confluent_kafka", "kio", "pyspark", "pandas") == []


def test_no_wait_swallows_a_cancellation(modules: Callable[..., list[Module]]) -> None:
    """asyncio.wait_for of Python 3.11 does when both come in one turn of the loop; asyncio.timeout does not."""
    calls = [
        f"{module.name}:{node.lineno}"
        for module in modules("sdk", "mesh", "region", "gateway", "loadtest", "sla")
        if "wait_for" in module.text
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr == "wait_for" and ast.unparse(node) == "asyncio.wait_for"
    ]
    assert calls == []


def test_a_socket_is_made_a_connection_in_one_place_which_has_its_number_closed_once(
    modules: Callable[..., list[Module]],
) -> None:
    makers = [
        module.name
        for module in modules("region", "mesh", "gateway", "sdk")
        if "create_connection" in module.text
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".create_connection")
        if any(word.arg == "sock" for word in node.keywords)
    ]
    assert makers == ["mesh/listening/dialling.py"]


@pytest.mark.parametrize("listener", ["kafka", "grpc", "peers", "link", "admin"])
def test_a_broker_refuses_to_listen_beyond_loopback(tmp_path: Path, listener: str) -> None:
    listen = dict.fromkeys(("kafka", "grpc", "peers", "link", "admin"), "127.0.0.1:1")
    listen[listener] = "192.0.2.1:9000"
    rows = "\n".join(f'{name} = "{address}"' for name, address in listen.items())
    config = tmp_path / "broker.toml"
    config.write_text(
        f'mesh_id = "m"\nregion = "us"\nbroker = 1\ndata_dir = "data"\ndefinitions_home = "us"\n[listen]\n{rows}\n'
        '[[regions]]\nname = "us"\nnumber = 1\nbrokers = [{number = 1, peers = "127.0.0.1:1", link = "127.0.0.1:1"}]\n'
    )
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:9000 is not a loopback address"):
        load_config(config)


def room_of(names: list[str]) -> str:
    """Return the room of a module or of a path, "" of what is in none: a file beside rooms, a foreign package."""
    if names[0] in FOLDERS_OF_ROOMS:
        return names[1] if len(names) > 2 else ""
    return names[0] if names[0] in ROOT_ROOMS else ""


def real_imports(modules: list[Module]) -> dict[str, set[str]]:
    """Return which rooms each room imports, `georelay` and itself left out."""
    found: dict[str, set[str]] = {}
    for module in modules:
        room = room_of(module.name.removeprefix("sdk/").split("/"))
        if room:
            imported = {room_of([*name.split("."), ""]) for name in module.imports}
            found.setdefault(room, set()).update(imported - {"", room, "georelay"} - set(FOLDERS_OF_ROOMS))
    return found


def test_the_table_of_rooms_has_each_room_and_what_it_imports(
    modules: Callable[..., list[Module]], table_rows: Callable[[str], list[list[str]]], root: Path
) -> None:
    chapter = (root / "ARCHITECTURE.md").read_text().split("## Rooms")[1].split("\n## ")[0]
    real = real_imports(modules("sdk/georelay", *ROOT_ROOMS[1:]))
    wrong, told = [], set()
    for paths, _, cell in table_rows(chapter):
        rooms = {path.strip("` ").strip("/").split("/")[-1] for path in paths.split(",")} & set(real)
        told |= rooms
        written = set() if cell == "nothing of ours" else {name.strip() for name in cell.split(",")} - {"georelay"}
        imported = {name for room in rooms for name in real[room]} - rooms
        if rooms and written != {EVERYTHING} and written != imported:
            wrong.append(f"{paths}: imports {', '.join(sorted(imported))}")
    assert not wrong, "\n".join(wrong)
    assert told == set(real)
