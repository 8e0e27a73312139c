"""The bytes of a coordinator's state and of its commands: they are on disks, so they never change."""

from __future__ import annotations

from region.coordination.coordinators import COORDINATORS, INTERNAL_TOPIC
from region.coordination.in_memory import InMemoryCoordinators
from region.coordination.part import Part
from region.coordination.stream_container import StreamContainer

CONTAINER = bytes.fromhex("8100000003" + b"abc".hex() + "02" + "0100000002" + b"g1".hex() + "0300000001" + b"q".hex())


def test_container() -> None:
    whole = StreamContainer(stream=b"abc", parts={Part.GROUPS: b"g1", Part.QUEUES: b"q"})
    assert whole.encode() == CONTAINER
    assert dict(StreamContainer.decode(CONTAINER).parts) == dict(whole.parts)


def test_numbers_of_the_parts() -> None:
    assert {part.name: int(part) for part in Part} == {"GROUPS": 1, "TRANSACTIONS": 2, "QUEUES": 3}


def test_place_of_a_key() -> None:
    assert (INTERNAL_TOPIC, COORDINATORS) == ("__georelay_coordinators", 8)
    coordinators = InMemoryCoordinators()
    places = {key: coordinators.partition_of(key) for key in ("", "orders", "billing", "größe", "a" * 200)}
    assert places == {"": 1, "orders": 4, "billing": 1, "größe": 4, "a" * 200: 0}  # as kafka-python hashes them
