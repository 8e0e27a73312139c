"""The text listener is served where an address is set, and nowhere else."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from region.config import CLIENT_LISTENERS, Listen

OTHERS = {
    name: f"127.0.0.1:{port}" for port, name in enumerate(("kafka", "grpc", "peers", "link", "admin"), start=9000)
}


def test_it_is_off_unless_an_address_is_set() -> None:
    assert Listen(**OTHERS).text == ""
    assert Listen(**OTHERS, text="127.0.0.1:9100").text == "127.0.0.1:9100"


@pytest.mark.parametrize("address", ["9100", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        Listen(**OTHERS, text=address)


def test_the_loopback_rule_holds_for_it_too() -> None:
    assert "text" in CLIENT_LISTENERS
