"""Kafka's partitioner: the vectors of the Java client, and kafka-python's on random keys."""

from __future__ import annotations

import random

import pytest
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from georelay.wire.murmur2 import murmur2, partition_for_key

JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java"), JAVA_VECTORS.items())
def test_hashes_equal_those_of_the_java_client(key: bytes, java: int) -> None:
    assert murmur2(key) == java % 2**32


def test_hashes_equal_kafka_pythons_on_every_length() -> None:
    rng = random.Random(1)
    for size in range(64):
        key = rng.randbytes(size)
        assert murmur2(key) == kafka_python_murmur2(key) % 2**32


def test_the_partition_is_the_positive_hash_modulo_the_partitions() -> None:
    assert partition_for_key(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
    assert {partition_for_key(b"%d" % n, 3) for n in range(50)} == {0, 1, 2}
