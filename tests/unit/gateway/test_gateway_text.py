"""RESOLVE at the text listener of a gateway: the answers, bounds and rights of POST /v1/resolve, one line each."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.text import listener as text_listener
from gateway.text.commands_core import LANGUAGE, Resolve, regions_of, tail_of
from georelay.errors import BadRequest
from tests.unit.gateway.test_gateway_routes import ask, judging, two_regions

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "protocol" / "text.md"
SECTION: Final = "At a gateway"
# From one gateway to the next, and from one answer to the next.
_CHANGING: Final = re.compile(r"127\.0\.0\.1:\d+|[\d.]+ ms (?:kernel|links)|ttl [\d.]+")


class Person:
    """Somebody with telnet."""

    def __init__(self, mesh: Any) -> None:
        self._port = mesh.ports.text

    async def __aenter__(self) -> Person:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def type(self, line: str) -> None:
        self._writer.write(line.encode() + b"\r\n")

    async def read(self) -> str:
        """Return the next line, "" at the end."""
        async with asyncio.timeout(10):
            return (await self._reader.readline()).decode().removesuffix("\r\n")

    async def answer(self, line: str) -> list[str]:
        self.type(line)
        lines = [await self.read()]
        while lines[-1].startswith("*"):
            lines.append(await self.read())
        return lines


def lasting(line: str) -> str:
    return _CHANGING.sub("~", line)


async def test_the_transcript_of_the_page_is_what_a_person_sees(start_mesh: Any, start_broker: Any) -> None:
    text = PAGE.read_text().partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^```\n(.*?)^```", text, flags=re.M | re.S)[0].splitlines()
    mesh = await start_mesh(us=[await start_broker(judging)], eu=[await start_broker(judging)], users=True)
    await mesh.until(lambda seen: all(region["rtt_ms"] is not None for region in seen.values()))
    pin = {"subject": "billing-7", "value": "eu"}
    assert (await ask(mesh, "POST", "/v1/routes/pin", pin, Authorization="basic YW5uOnNlY3JldA=="))[0] == 200
    async with Person(mesh) as person:
        seen = []
        for line in lines:
            if line.startswith("> "):
                seen.append(line)
                person.type(line.removeprefix("> "))
            else:
                seen.append(await person.read())
        assert list(map(lasting, seen)) == list(map(lasting, lines))
        assert await person.read() == ""


async def test_a_line_and_http_give_one_client_one_answer(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    assert (await ask(mesh, "POST", "/v1/routes/pin", {"subject": "ann", "value": "eu"}))[0] == 200
    question = '{"client":"ann","topic":"orders","intent":"publish"}'
    _, over_http = await ask(mesh, "POST", "/v1/resolve", {"client": "ann", "topic": "orders", "intent": "publish"})
    async with Person(mesh) as person:
        assert await person.read() == "OK georelay text 1 gateway region us; begin with HELP"
        *rows, last = await person.answer(f"RESOLVE {question}")
        named = await person.answer("resolve ann")
    assert list(map(lasting, rows)) == list(map(lasting, regions_of(over_http)))
    assert lasting(last) == lasting(f"OK {tail_of(over_http)}")
    assert len(named) == 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"RESOLVE a b", "write it so: RESOLVE [client | {json}]"),
        (b"RESOLVE {", "not JSON"),
        (b'RESOLVE {"rtt":1.5}', "is not an integer"),
        (b"PUBS orders {}", "unknown command 'PUBS'"),
    ],
)
def test_a_line_that_is_no_question_says_how_one_is_written(line: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        LANGUAGE.parse(line)
    assert says in str(refused.value)


def test_a_question_is_none_a_name_or_that_of_the_json() -> None:
    assert LANGUAGE.parse(b"RESOLVE") == Resolve({})
    assert LANGUAGE.parse(b"resolve ann") == Resolve({"client": "ann"})
    assert LANGUAGE.parse(b'RESOLVE {"client":"an n"}') == Resolve({"client": "an n"})


async def test_what_http_refuses_is_refused_and_the_connection_stays(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(judging)])
    async with Person(mesh) as person:
        await person.read()
        for wrong in ('{"name":"ann"}', '{"intent":"write"}', "x" * 200, '{"client":"%s"}' % ("x" * 17_500)):
            (answer,) = await person.answer(f"RESOLVE {wrong}")
            assert answer.startswith(("ERR BAD_REQUEST", "ERR TOO_LARGE"))
        assert (await person.answer("RESOLVE"))[-1].startswith("OK region us")


async def test_a_question_of_somebody_who_is_not_signed_in_any_more_is_not_answered(
    start_mesh: Any, start_broker: Any
) -> None:
    mesh = await start_mesh(us=[await start_broker(judging)])
    async with Person(mesh) as person:
        await person.read()
        mesh.gateway._judge.required = True  # the first user was made
        (answer,) = await person.answer("RESOLVE ann")
        assert answer.startswith("ERR UNAUTHENTICATED")


async def test_who_guesses_passwords_or_speaks_http_is_hung_up_on(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(judging)], users=True)
    async with Person(mesh) as guesser:
        await guesser.read()
        for _ in range(3):
            (answer,) = await guesser.answer("AUTH ann guess")
            assert answer == "ERR UNAUTHENTICATED wrong user or password"
        assert await guesser.read() == ""
    async with Person(mesh) as browser:
        await browser.read()
        browser.type("POST / HTTP/1.1")
        assert (await browser.read()).startswith("ERR BAD_REQUEST no request of HTTP")
        assert await browser.read() == ""


async def test_a_client_that_says_nothing_or_does_not_sign_in_is_cut_off(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_listener, "IDLE_S", 0.05)
    monkeypatch.setattr(text_listener, "SIGN_IN_S", 0.05)
    for users in (False, True):
        mesh = await start_mesh(us=[await start_broker(judging)], users=users)
        async with Person(mesh) as person:
            await person.read()
            person._writer.write(b"no end of a line")
            with pytest.raises(ConnectionResetError):
                await person.read()
