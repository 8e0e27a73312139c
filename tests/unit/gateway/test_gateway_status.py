"""Why a broker did not answer is told in words for a person."""

from __future__ import annotations

import aiohttp
import pytest

from gateway.rest.resolve import reason_of
from tests.free_ports import free_port


async def test_a_broker_that_refuses_is_not_said_to_have_anything_to_do_with_ssl() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError) as refused:
            await session.get(f"http://127.0.0.1:{free_port()}/")
    assert reason_of(refused.value) == "connection refused"


def test_silence_and_broken_answers_are_named() -> None:
    assert reason_of(TimeoutError()) == "no answer within 3 s"
    assert reason_of(aiohttp.ServerDisconnectedError()) == "the connection ended without an answer"
    assert reason_of(ValueError("Expecting value")) == "Expecting value"
