"""What the page about campaigns shows can be run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from loadtest.load.campaign_file import parse

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "load.md"


def test_the_campaign_in_the_docs_is_right() -> None:
    (text, *_) = re.findall(r"^```toml\n(about .*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    campaign = parse(text, name="shown", place="load.md")
    assert campaign.seconds == 50
    assert campaign.topics[0].brokers == ("us-1", "us-2")
