"""The conversations that docs/protocol/text.md prints are what a person sees, line by line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from region.kafka.ports import BrokerInfo

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "protocol" / "text.md"
REGIONS: Final = {1: "us", 2: "eu", 3: "ap"}
PLAYED: Final = ("A session", "As it was first printed")


def _conversation(section: str) -> list[str]:
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks: list[str] = re.findall(r"^```\n(.*?)^```", text, flags=re.M | re.S)
    return next(block for block in blocks if "\n> " in block).splitlines()


@pytest.mark.parametrize("section", PLAYED)
async def test_a_transcript_of_the_page_is_what_a_person_sees(bed: Any, section: str) -> None:
    lines = _conversation(section)
    if any("AUTH" in line for line in lines):
        bed.sign_in.users = {"alice": "geheim"}
    row = BrokerInfo(id=1001, kafka_host="127.0.0.1", kafka_port=25800, grpc="127.0.0.1:25801", admin="127.0.0.1:25804")
    bed.cluster.brokers = lambda: [row]
    await bed.listen(region_name=REGIONS.__getitem__)
    person = await bed.person(greeted=False)
    seen = []
    for line in lines:
        if line.startswith("> "):
            seen.append(line)
            person.type(line.removeprefix("> "))
        else:
            seen.append(await person.read())
    assert seen == lines
