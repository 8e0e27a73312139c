"""What is measured in a gateway bed ends with 1 when something that was acknowledged is lost, and its clients end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError

from loadtest.load import programs
from loadtest.login import Login
from loadtest.wan import __main__, landing, moving
from loadtest.wan.gateway_bed import Lost
from loadtest.wan.moving_core import Event


class Bed:
    """A gateway bed without a mesh."""

    login = Login(rdkafka={"sasl.username": "ann"})
    endpoints: dict[str, Any] = {"regions": {moving.HOME: {"kafka": ["198.18.3.1:9092"]}}}  # noqa: RUF012

    def __init__(self, *_: object) -> None:
        self.can_cut = True

    async def __aenter__(self) -> Bed:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def address(self, place: str, number: int = 9) -> str:
        return f"{place}.{number}"

    def ask(self, *_: object, **__: object) -> dict[str, Any]:
        return {"rules": ["ap"], "records": []}

    def bed_since(self, _: int) -> dict[str, Any]:
        return {"lag_us": [2000]}

    async def wan_at_ns(self, *_: str) -> int:
        if not self.can_cut:
            raise RuntimeError("the bed is gone")
        return 1


class Clients:
    """Clients that have published two records."""

    def __init__(self) -> None:
        self.events = [Event("SDK", "acked", 1, f"SDK {number}") for number in range(2)]
        self.is_ended = False
        made.append(self)

    def start(self, bed: object, task: object) -> None:
        pass

    def end(self) -> None:
        self.is_ended = True

    def region_of(self, _: str) -> str:
        return "us"


made: list[Clients] = []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing take time."""
    made.clear()
    monkeypatch.setattr(moving, "Clients", Clients)
    for name in ("GONE_S", "CUT_S", "PERIOD_S"):
        monkeypatch.setattr(moving, name, 0.0)


async def lines_of(bed: Bed) -> list[str]:
    return [line async for line in moving.cuts(bed, count=1, rate=1.0, kinds=["SDK"])]  # type: ignore[arg-type]


async def test_clients_end_also_when_the_bed_fails_under_them() -> None:
    bed = Bed()
    bed.can_cut = False
    with pytest.raises(RuntimeError, match="the bed is gone"):
        await lines_of(bed)
    assert [clients.is_ended for clients in made] == [True]


@pytest.mark.parametrize(("stored", "gone"), [(2, 0), (1, 1)])
async def test_cuts_that_lose_an_acknowledged_record_say_so_behind_the_table(
    stored: int, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_stored", lambda _: Counter(f"SDK {number}" for number in range(stored)))
    told = []
    with pytest.raises(Lost, match="1 records that were acknowledged are lost") if gone else nullcontext():
        async for line in moving.cuts(Bed(), count=1, rate=1.0, kinds=["SDK"]):  # type: ignore[arg-type]
            told.append(line)
    assert f"2 acknowledged, {gone} lost" in told[-1]


async def test_a_record_that_landed_nowhere_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "_do", lambda *_: None)
    with pytest.raises(Lost, match="60 records that were published are in no region"):
        assert [line async for line in landing.measure(Bed(), jars="")]  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "code"), [("", 0), ("2 records are lost", 1)])
def test_the_exit_code_says_whether_something_is_lost(
    text: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measured(*_: object, **__: object) -> AsyncIterator[str]:
        yield "a table"
        if text:
            raise Lost(text)

    monkeypatch.setattr(sys, "argv", ["wan", "cuts"])
    monkeypatch.setattr(__main__, "GatewayBed", Bed)
    monkeypatch.setattr(moving, "cuts", measured)
    assert __main__.main() == code
    said = capsys.readouterr().out.splitlines()[1:]
    assert said == ["a table", *([f"LOST: {text}"] if text else []), "lag of the router: at most 2.00 ms"]


class Message:
    """A record, or the end of a partition."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._value is None else None

    def partition(self) -> int:
        return 0


def test_a_topic_is_read_to_its_end_and_not_until_so_many_records_came(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    class Consumer:
        def __init__(self, settings: dict[str, Any]) -> None:
            told.append(settings)

        def list_topics(self, topic: str, timeout: float) -> Any:
            partitions = type("Topic", (), {"partitions": {0: None}})
            return type("Topics", (), {"topics": {topic: partitions}})

        def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
            return 0, 3  # two of which no reader is given

        def assign(self, _: object) -> None:
            pass

        def consume(self, *_: object) -> list[Message]:
            return [Message(b"SDK 0"), Message(None)]

        def close(self) -> None:
            pass

    monkeypatch.setattr(programs, "Consumer", Consumer)
    assert moving._stored(Bed()) == {"SDK 0": 1}  # type: ignore[arg-type]
    assert (told[0]["bootstrap.servers"], told[0]["sasl.username"]) == ("ap.1:9092", "ann")
