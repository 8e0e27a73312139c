"""The stream of brokers' traces: every row once, in bounded batches, whoever is away; none of it needs Spark's JVM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from georelay.errors import TracesExpired
from georelay.trace.kinds import TraceKind
from georelay.trace.position import NEXT_KEY, TracePosition
from sla import cli
from sla.errors import JobFailed, UsageError
from sla.live import reaching
from sla.live.reaching import Credentials, NotReached, Server, check_url, find_brokers
from sla.sources.broker import LiveReader, StreamOptions
from tests.sla.live_brokers import START_S, TracedBroker, gateway_app, serving

ALL = ReadAllAvailable()


class Mesh:
    """Two brokers, a gateway that names them, and a reader whose pauses move its own clock."""

    def __init__(self, folder: Path) -> None:
        self.eu = TracedBroker(folder / "eu", "eu/2001")
        self.us = TracedBroker(folder / "us", "us/1001")
        self.gateway = ""
        self.time_s = 0.0
        self.pauses_s: list[float] = []
        self.on_pause: Any = lambda: None

    def reader(self, **changes: str) -> LiveReader:
        options = {"urls": f"http://{self.gateway}", "kinds": "probe", "begin": "oldest"} | changes
        return LiveReader(StreamOptions.of(options), monotonic_s=lambda: self.time_s, sleep=self.sleep)

    def sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        self.time_s += pause_s
        self.on_pause()


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path)
    with serving(mesh.eu.app(), mesh.us.app()) as brokers, serving(gateway_app(brokers)) as gateways:
        (mesh.gateway,) = gateways
        yield mesh


def rows(reader: LiveReader, start: Any, end: Any) -> list[tuple[str, int]]:
    """Return (region, seq) of every row of a batch."""
    found = []
    for piece in reader.partitions(start, end):
        for batch in reader.read(piece):
            found += list(zip(batch.column("trace_region").to_pylist(), batch.column("seq").to_pylist(), strict=True))
    return sorted(found)


def test_a_gateway_names_the_brokers_and_each_row_is_in_one_batch(mesh: Mesh) -> None:
    for seq in range(5):
        mesh.eu.probe(seq, "us")
    mesh.us.probe(7, "eu")
    reader = mesh.reader()
    first = reader.latestOffset({}, ALL)
    assert first == {
        "eu/2001": {"probe": "b1/5", "probe.since": "b1/0"},
        "us/1001": {"probe": "b1/1", "probe.since": "b1/0"},
    }
    assert rows(reader, {}, first) == [("eu", 0), ("eu", 1), ("eu", 2), ("eu", 3), ("eu", 4), ("us", 7)]
    mesh.eu.boot()
    mesh.eu.probe(9, "us")
    second = reader.latestOffset(first, ALL)
    assert rows(reader, first, second) == [("eu", 9)]
    assert reader.latestOffset(second, ALL) == second
    assert list(reader.partitions(second, second)) == []
    assert rows(mesh.reader(), {}, first) == rows(reader, {}, first)  # another process, the same batch again


def test_a_new_stream_begins_with_new_rows_unless_it_is_told_otherwise(mesh: Mesh) -> None:
    mesh.eu.probe(1, "us")
    reader = mesh.reader(begin="latest")
    first = reader.latestOffset({}, ALL)
    assert rows(reader, {}, first) == []
    mesh.eu.probe(2, "us")
    mesh.us.probe(3, "eu")  # a broker that had no rows: its first one is new
    assert rows(reader, first, reader.latestOffset(first, ALL)) == [("eu", 2), ("us", 3)]


def test_a_batch_has_no_more_rows_than_asked_for(mesh: Mesh) -> None:
    for seq in range(10):
        mesh.eu.probe(seq, "us")
        mesh.us.probe(seq, "eu")
    reader = mesh.reader(rows_per_batch="6")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    end: Any = {}
    sizes = []
    for _ in range(4):
        start, end = end, reader.latestOffset(end, limit)
        sizes.append(len(rows(reader, start, end)))
    assert sizes == [6, 6, 6, 2]


def test_available_now_ends_with_what_was_there_when_it_began(mesh: Mesh) -> None:
    mesh.eu.probe(1, "us")
    reader = mesh.reader()
    reader.prepareForTriggerAvailableNow()
    mesh.eu.probe(2, "us")
    end = reader.latestOffset({}, ReadMaxRows(100))
    assert rows(reader, {}, end) == [("eu", 1)]
    assert reader.latestOffset(end, ReadMaxRows(100)) == end


def test_available_now_reads_nothing_of_a_broker_that_was_away_when_it_began(mesh: Mesh) -> None:
    mesh.eu.probe(1, "us")
    mesh.us.probe(1, "eu")
    reader = mesh.reader()
    first = reader.latestOffset({}, ReadMaxRows(100))
    mesh.eu.is_down = True
    reader.prepareForTriggerAvailableNow()
    mesh.eu.is_down = False
    mesh.eu.probe(2, "us")
    assert reader.latestOffset(first, ReadMaxRows(100)) == first


def test_a_broker_that_is_away_stays_where_it_is_and_holds_nobody_back(mesh: Mesh) -> None:
    mesh.eu.probe(1, "us")
    mesh.us.probe(1, "eu")
    reader = mesh.reader()
    first = reader.latestOffset({}, ALL)
    mesh.eu.is_down = True
    mesh.us.probe(2, "eu")
    second = reader.latestOffset(first, ALL)
    assert rows(reader, first, second) == [("us", 2)]
    mesh.eu.is_down = False
    mesh.eu.probe(3, "us")
    assert rows(reader, second, reader.latestOffset(second, ALL)) == [("eu", 3)]


def test_rows_of_a_planned_batch_are_asked_for_again_until_the_broker_answers(mesh: Mesh) -> None:
    mesh.eu.probe(1, "us")
    reader = mesh.reader()
    end = reader.latestOffset({}, ALL)
    mesh.eu.is_down = True
    mesh.on_pause = lambda: setattr(mesh.eu, "is_down", len(mesh.pauses_s) < 3)
    assert rows(reader, {}, end) == [("eu", 1)]
    assert mesh.pauses_s == [0.2, 0.4, 0.8]


def test_a_batch_fails_by_the_name_of_the_broker_that_stays_away(mesh: Mesh) -> None:
    mesh.eu.probe(1, "us")
    reader = mesh.reader(patience_s="9")
    end = reader.latestOffset({}, ALL)
    mesh.eu.is_down = True
    with pytest.raises(JobFailed, match="broker eu/2001 does not answer"):
        rows(reader, {}, end)
    assert 4 < sum(mesh.pauses_s) <= 9


def test_rows_that_the_broker_deleted_fail_loudly(mesh: Mesh) -> None:
    for seq in range(2):
        mesh.eu.probe(seq, "us")
        mesh.eu.writer.roll()
    reader = mesh.reader()
    end = reader.latestOffset({}, ALL)
    min(mesh.eu.directory.rglob("probe-*.parquet")).unlink()
    with pytest.raises(TracesExpired, match="the oldest is b1/1"):
        rows(reader, {}, end)
    with pytest.raises(TracesExpired):
        reader.latestOffset({"eu/2001": {"probe": "b1/0"}}, ALL)


def test_rows_of_several_kinds_have_the_columns_of_all_and_their_place(mesh: Mesh) -> None:
    mesh.eu.probe(4, "us", "lost")
    mesh.eu.latencies(START_S, "us", [5_000, 5_000, 70_000])
    reader = mesh.reader(kinds="latency_hist,probe")
    end = reader.latestOffset({}, ALL)
    batches = [batch for piece in reader.partitions({}, end) for batch in reader.read(piece)]
    hist, probe = (batch.to_pylist()[0] for batch in batches)
    place = ("trace_kind", "trace_region", "trace_broker", "trace_boot", "trace_row")
    assert [hist[name] for name in place] == ["latency_hist", "eu", "2001", "b1", 0]
    assert (hist["n"], hist["n_good"], hist["outcome"]) == (3, 2, None)
    assert (probe["outcome"], probe["seq"], probe["n"], probe["trace_kind"]) == ("lost", 4, None, "probe")
    assert batches[0].schema.names == [field.name for field in StreamOptions.of(
        {"urls": "http://x:1", "kinds": "latency_hist,probe"}
    ).spark_schema()]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kinds": "probe"}, "'urls'"),
        ({"urls": "http://x:1"}, "'kinds'"),
        ({"urls": "http://x:1", "kinds": "probe,x"}, "'x'"),
        ({"urls": "http://x:1", "kinds": "probe", "begin": "now"}, "'begin'"),
        ({"urls": "http://x:1", "kinds": "probe", "rows_per_batch": "0"}, "'rows_per_batch'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        StreamOptions.of(options)


def test_a_token_comes_from_its_file_and_is_shown_to_every_broker(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    found, silent = find_brokers([f"http://{mesh.gateway}"], Credentials(token_file=str(file)))
    assert (sorted(found), silent) == (["eu/2001", "us/1001"], [])
    assert {*mesh.eu.tokens_seen, *mesh.us.tokens_seen} == {"Bearer s3cret"}
    assert "s3cret" not in repr(Credentials(token_file=str(file)))


def test_a_token_is_not_sent_in_the_open(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with pytest.raises(UsageError, match="over https or to this machine") as refused:
        Server("http://192.0.2.1:9", Credentials(token_file=str(file))).positions(TraceKind.PROBE)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("content", [None, "", "two words\n", "ü\n"])
def test_a_token_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match="--token-file"):
        Credentials(token_file=str(file)).check()


@pytest.mark.parametrize("url", ["x:1", "http://x", "ftp://x:1", "http://u:p@x:1", "http://x:1/v1", "http://x:y"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no http"):
        check_url(url)


def test_who_does_not_answer_is_named(mesh: Mesh) -> None:
    mesh.us.is_down = True
    found, silent = find_brokers([f"http://{mesh.gateway}", "http://127.0.0.1:1"], Credentials())
    assert sorted(found) == ["eu/2001"]
    assert len(silent) == 2
    with pytest.raises(NotReached):
        Server("http://127.0.0.1:1", Credentials()).positions(TraceKind.PROBE)


DEEP = "[" * 100_000


@pytest.mark.parametrize("document", [{"regions": 3}, {"regions": [{}]}, {}])
def test_a_server_that_is_something_else_is_named_and_breaks_nothing(document: dict[str, Any]) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(document)

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    with serving(app) as (address,):
        found, (reason,) = find_brokers([f"http://{address}"], Credentials())
        assert found == {}
        assert reason.startswith(f"http://{address} answers with something that is not understood")
        with (
            contextlib.closing(Server(f"http://{address}", Credentials())) as server,
            pytest.raises(NotReached, match="not understood"),
        ):
            server.positions(TraceKind.PROBE)


@pytest.mark.parametrize("odd", ["eu-1:", "x", "u:p@x:1", "x:99999999", "[::1", ""])
def test_an_odd_address_of_a_gateway_is_told_and_stops_the_view_of_nobody_else(tmp_path: Path, odd: str) -> None:
    eu = TracedBroker(tmp_path / "eu", "eu/2001")
    with serving(eu.app()) as (address,), serving(gateway_app([odd, address])) as (gateway,):
        found, silent = find_brokers([f"http://{gateway}"], Credentials())
    assert sorted(found) == ["eu/2001"]
    assert [line for line in silent if repr(f"http://{odd}") in line and "a gateway names" in line] == silent != []


@contextlib.contextmanager
def one_answer(body: bytes, content_type: str = "application/json") -> Iterator[Server]:
    """Serve one body at every path."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type)

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    with serving(app) as (address,), contextlib.closing(Server(f"http://{address}", Credentials())) as server:
        yield server


@pytest.mark.parametrize("region", ["a/b", "", "EU", "x" * 21, "a b"])
def test_a_broker_whose_region_cannot_be_one_is_not_understood(region: str) -> None:
    body = json.dumps({"is_writing": True, "region": region, "broker": 12, "gateway": ""}).encode()
    with one_answer(body) as server, pytest.raises(NotReached, match="not understood"):
        server.writer()


def test_an_answer_that_is_nested_too_deeply_is_no_answer() -> None:
    with one_answer(DEEP.encode()) as server, pytest.raises(NotReached, match="something else than a JSON object"):
        server.writer()


def test_an_answer_that_comes_byte_by_byte_is_cut_off() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response

    app = web.Application()
    app.router.add_get("/{rest:.*}", drip)
    with serving(app) as (address,):
        server = Server(f"http://{address}", Credentials(), wait_s=2.0, whole_s=0.4)
        began_s = time.monotonic()
        with contextlib.closing(server), pytest.raises(NotReached, match=r"its answer takes longer than 0\.4 s"):
            server.json("/")
        assert time.monotonic() - began_s < 2


def test_a_page_that_grows_too_large_when_it_is_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("x", pa.int64())], metadata={NEXT_KEY: b"b1/9"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        for _ in range(8):
            stream.write_batch(pa.record_batch([pa.array([0] * 10_000)], schema=schema))
    body = sink.getvalue().to_pybytes()
    start = TracePosition.parse("b1/0")
    with one_answer(body, "application/octet-stream") as server:
        table, end = server.page(TraceKind.PROBE, start, start)
        assert (table.num_rows, str(end)) == (80_000, "b1/9")
        monkeypatch.setattr(reaching, "PAGE_TABLE_BYTES_MAX", 200_000)
        assert len(body) < 200_000
        with pytest.raises(NotReached, match="more than 200000 bytes of rows"):
            server.page(TraceKind.PROBE, start, start)


def test_the_page_of_the_live_view_names_every_option() -> None:
    page = (Path(cli.__file__).parents[1] / "docs" / "sla" / "live.md").read_text()
    cells = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `--"))
    (commands,) = (action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction))
    options = {name for action in commands.choices["live"]._actions for name in action.option_strings}
    assert set(re.findall(r"`(--[a-z-]+)`", cells)) == options - {"-h", "--help"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--checkpoint", "x"], "--source"),
        (["--source", "http://x:1"], "--checkpoint"),
        (["--source", "http://x:1", "--checkpoint", "x", "--rows", "0"], "--rows"),
        (["--source", "http://x:1", "--checkpoint", "x", "--trigger", "5"], "5s|length of time"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["live", *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(text, said)
    assert said.count("\n") == 1
