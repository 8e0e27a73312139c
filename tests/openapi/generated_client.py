"""Part of `make client`: publishes and reads with nothing but what was generated. Runs without our environment.

python generated_client.py GATEWAY
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, Final

PACKAGE: Final = "georelay_generated"
TOPIC: Final = "generated"
VALUES: Final = ["placed", "paid", "shipped"]
PATIENCE_S: Final = 30


def part(name: str) -> Any:
    """Return a module of the generated package."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def main(gateway: str) -> None:
    """Make a topic, publish, read, and be refused."""
    models, topics = part("models"), "api.topics"
    client = part("client").Client(base_url=gateway)
    with client:
        new_topic = models.NewTopic(name=TOPIC, partitions=1)
        made = part(f"{topics}.post_topics").sync_detailed(client=client, body=new_topic)
        assert made.status_code == 201, made.content
        records = [models.Record(key="customer-7", value=value) for value in VALUES]
        published = part(f"{topics}.post_topics_topic_records").sync(TOPIC, client=client, body=records)
        assert [row.offset for row in published.records] == [0, 1, 2], published
        read = part(f"{topics}.get_topics_topic_records")
        until_s = time.monotonic() + PATIENCE_S
        found: list[str] = []
        while len(found) < len(VALUES) and time.monotonic() < until_s:
            answer = read.sync(TOPIC, client=client, partition=0, offset="earliest", wait_ms=1_000)
            found = [row.value for row in answer.records]
        assert found == VALUES, found
        refused = read.sync("nowhere", client=client)
        assert isinstance(refused, models.Problem), refused
        assert refused.code == "UNKNOWN_TOPIC", refused
    print(f"the generated client published {len(VALUES)} records, read them, and understood a problem")


if __name__ == "__main__":
    main(sys.argv[1])
