"""The synchronous client: `python without_asyncio.py URL TOPIC`."""

from __future__ import annotations

import sys

import georelay.sync


def main(url: str, topic: str) -> None:
    """Make a topic, publish five records, read them back."""
    with georelay.sync.connect(url) as mesh:
        mesh.admin.create_topic(topic, partitions=1)
        with mesh.producer() as producer:
            for number in range(5):
                producer.send(topic, b"%d" % number)
            producer.flush()
        with mesh.consumer([topic], start=georelay.Start.EARLIEST) as consumer:
            for record in consumer:
                print(record.offset, (record.value or b"").decode())
                if record.offset == 4:
                    break


if __name__ == "__main__":
    main(*sys.argv[1:])
