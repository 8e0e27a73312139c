"""Tables and diagrams that repeat the code say what the code says."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gateway.config import GatewayConfig
from georelay import errors
from mesh.listening.grpc_status import grpc_status
from mesh.replication import frames, link_state
from mesh.replication.link_framed import ACCEPTED_KIND, BEGIN_KIND, LINK_KIND
from mesh.replication.stream_header import OWNS_OFFSETS, EntryType
from region.config import BrokerConfig
from region.kafka.error_map import kafka_code
from region.multiraft.peers import FrameKind
from region.raft.core.roles import ROLE_CHANGES
from region.raft.wire import Kind

Rows = Callable[[str], list[list[str]]]
METRIC_SOURCES = (
    "region/broker/link_metrics.py",
    "region/geo/metrics.py",
    "gateway/metrics.py",
    "region/api/group_metrics.py",
    "region/api/queue_metrics.py",
    "region/api/binding_metrics.py",
    "region/api/sockets_http.py",
    "region/api/unfolding_metrics.py",
    "region/broker/clocks.py",
    "region/broker/trace_metrics.py",
    "region/broker/shed_watch.py",
    "region/broker/storage_metrics.py",
    "mesh/listening/listeners.py",
    "mesh/listening/congestion_control.py",
    "region/broker/control_metrics.py",
    "region/broker/home_metrics.py",
    "region/broker/security_metrics.py",
    "mesh/gossip/metrics.py",
    "sla/live/metrics.py",
)


def error_classes() -> list[type[errors.GeorelayError]]:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return [kind for kind in classes if issubclass(kind, errors.GeorelayError) and kind is not errors.GeorelayError]


def without_init(kind: type[errors.GeorelayError]) -> errors.GeorelayError:
    return kind.__new__(kind)


# --- errors ------------------------------------------------------------------------------------------


def test_every_error_has_its_row_with_the_values_of_the_code(root: Path, table_rows: Rows) -> None:
    rows = {row[0].strip("`"): row[1:] for row in table_rows((root / "docs/errors.md").read_text())}
    assert set(rows) == {kind.__name__ for kind in error_classes()}
    for kind in error_classes():
        kafka = kafka_code(without_init(kind))
        assert rows[kind.__name__][:-1] == [
            f"`{kind.code}`",
            kind.retry.value,
            kind.outcome.value,
            str(kind.http_status),
            grpc_status(without_init(kind)),
            f"{kafka.name} ({int(kafka)})",
        ], kind.__name__


def test_every_error_says_what_to_do(root: Path, table_rows: Rows) -> None:
    for row in table_rows((root / "docs/errors.md").read_text()):
        assert len(row) == 8
        assert row[-1].endswith("."), row[0]


# --- configuration -----------------------------------------------------------------------------------


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, default as the documents write it)."""
    for name, field in model.model_fields.items():
        section, is_list = section_of(field.annotation)
        if section is not None:
            yield from keys_of(section, f"{prefix}{name}{'[]' if is_list else ''}.")
        else:
            yield f"{prefix}{name}", "required" if field.is_required() else written(field.default)


def section_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    found = [part for part in get_args(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
    return (found[0], True) if found else (None, False)


def written(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return '`""`' if default == "" else f"`{default}`"


@pytest.mark.parametrize(("heading", "model"), [("Broker", BrokerConfig), ("Gateway", GatewayConfig)])
def test_the_configuration_table_has_every_key_and_default(
    root: Path, table_rows: Rows, heading: str, model: type[BaseModel]
) -> None:
    section = re.split(r"^## ", (root / "docs/config.md").read_text(), flags=re.M)
    text = next(part for part in section if part.startswith(f"{heading}\n"))
    assert {row[0].strip("`"): row[2] for row in table_rows(text)} == dict(keys_of(model))


# --- formats -----------------------------------------------------------------------------------------


def test_the_entry_types_and_their_offsets_are_the_codes(root: Path, table_rows: Rows) -> None:
    text = (root / "docs/protocol/entry-format-1.md").read_text().partition("## Types")[2]
    rows = {int(row[0]): (row[1].partition(",")[0], row[2]) for row in table_rows(text) if row[0].isdigit()}
    assert {number: name for number, (name, _) in rows.items()} == {int(kind): kind.name for kind in EntryType}
    assert {number for number, (_, owned) in rows.items() if owned != "0"} == {int(kind) for kind in OWNS_OFFSETS}


def test_the_layouts_of_format_1_are_the_docstrings(root: Path, table_rows: Rows) -> None:
    local, stream = (root / "docs/protocol/entry-format-1.md").read_text().partition("## Types")[0].split("## STREAM")
    from mesh.replication import stream_header
    from region.log import entry

    for text, module in ((local, entry), (stream, stream_header)):
        layout = re.findall(r"^ +(\d+) +(\d+)  (\w+) ", f"{module.__doc__} ".replace("\n", " \n"), flags=re.M)
        documented = [(row[0], row[1], row[2]) for row in table_rows(text) if row[0].isdigit()]
        assert documented == [row for row in layout if row[2] != "the"]


def test_the_link_frames_are_the_docstring(root: Path, table_rows: Rows) -> None:
    carrier, text = (root / "docs/protocol/link-frames.md").read_text().split("## Frames")
    assert [int(row[0]) for row in table_rows(carrier)] == [ACCEPTED_KIND, LINK_KIND, BEGIN_KIND]
    rows = table_rows(text)
    documented = {int(row[0]): (row[1], row[2]) for row in rows if row[0].isdigit()}
    one_line = re.sub(r"\s+", " ", frames.__doc__ or "")
    assert set(documented) == set(frames._DECODERS)
    for number, (name, body) in documented.items():
        assert f" {number} {name} {body} " in f"{one_line} ", name


def test_the_peer_frames_and_raft_messages_have_the_numbers_of_the_code(root: Path, table_rows: Rows) -> None:
    peer, raft = (root / "docs/protocol/peer-frames.md").read_text().split("## Raft messages")
    for text, kinds in ((peer, FrameKind), (raft, Kind)):
        assert {int(row[0]): row[1] for row in table_rows(text)} == {int(kind): kind.name for kind in kinds}


# --- diagrams ----------------------------------------------------------------------------------------


def test_the_diagram_of_a_session_is_generated_from_its_table(root: Path) -> None:
    assert f"```mermaid\n{link_state.mermaid()}\n```" in (root / "ARCHITECTURE.md").read_text()


def test_the_diagram_of_a_raft_role_is_generated_from_its_table(root: Path) -> None:
    arrows = [f"  {old.value} --> {new.value}: {given.value}" for (old, given), new in ROLE_CHANGES.items()]
    diagram = "\n".join(["stateDiagram-v2", *arrows])
    assert f"```mermaid\n{diagram}\n```" in (root / "ARCHITECTURE.md").read_text()


# --- dependencies and metrics ------------------------------------------------------------------------


def test_every_dependency_has_its_reason(root: Path, table_rows: Rows) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *project["dependency-groups"]["peers"],
        *project["dependency-groups"]["terraform"],
        *project["build-system"]["requires"],
    ]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[\[<>=!~ ;]", requirement)[0] for requirement in wanted}
    reasons = {row[0].strip("`"): row[1] for row in table_rows((root / "docs/adr/0004-dependencies.md").read_text())}
    assert set(reasons) == names
    assert all(len(reason.split()) >= 2 for reason in reasons.values())


def test_the_metrics_page_has_every_metric_of_the_code(root: Path) -> None:
    broker = (root / "region/api/metrics.py").read_text()
    sources = [
        broker,
        *((root / name).read_text() for name in METRIC_SOURCES),
    ]
    names = {name for source in sources for name in re.findall(r'"(georelay_[a-z_]+)"', source)}
    kafka, _, streams = broker.partition("def _errors")
    names |= {f"georelay_kafka_{name}" for name in re.findall(r'^ +\("([a-z_]+)", "[A-Z]', kafka, flags=re.M)}
    names |= {f"georelay_stream_{name}" for name in re.findall(r'^ +\("([a-z_]+)", "[A-Z0-9]', streams, flags=re.M)}
    documented = set(re.findall(r"`(georelay_[a-z_]+)`", (root / "docs/operate/metrics.md").read_text()))
    assert documented == names


def test_the_http_page_has_every_route_of_broker_and_gateway(root: Path, table_rows: Rows) -> None:
    broker = [
        found
        for file in sorted((root / "region/api").glob("*_http.py"))
        for found in re.findall(r'(?:add_|web\.)(get|post|delete|patch)\("([^"]+)"', file.read_text())
    ]
    gateway = re.findall(r'web\.(get|post|delete|patch)\("([^"]+)"', (root / "gateway/rest/application.py").read_text())
    text = (root / "docs/protocol/http-and-grpc.md").read_text().partition("### ")[0]
    rows = {row[0].strip("`"): (row[1], row[2]) for row in table_rows(text)}
    served = {"broker": {f"{m.upper()} {p}" for m, p in broker}, "gateway": {f"{m.upper()} {p}" for m, p in gateway}}
    assert {path for path, (has, _) in rows.items() if has == "yes"} == served["broker"]
    assert {path for path, (_, has) in rows.items() if has == "yes"} == served["gateway"]
