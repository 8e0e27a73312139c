"""A publish is a duplicate of what stands in the log, byte for byte, or it is none: whoever forged its numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import UnknownProducer
from georelay.wire.batch import build_batch, parse_header
from georelay.wire.header import stamp_time
from mesh.replication.publish import Publish
from region.topics.producer_rows import CHECKSUM_LEVEL

FORGED, OWN = b"forged", b"own"


def publish(bench: Any, value: bytes, sequence: int = 0) -> Any:
    return bench.publish(value, producer=7, epoch=0, sequence=sequence)


async def test_a_batch_whose_sequence_another_one_took_is_refused_and_not_called_stored(make_bench: Any) -> None:
    bench = make_bench().ready()
    publish(bench, FORGED)
    bench.log.commit()
    with pytest.raises(UnknownProducer, match="another batch is stored under sequence 0"):
        publish(bench, OWN)
    assert bench.stream.next_offset == 1


async def test_the_same_batch_again_is_answered_with_the_place_of_the_first(make_bench: Any) -> None:
    bench = make_bench().ready()
    publish(bench, OWN)
    again = publish(bench, OWN)
    bench.log.commit()
    assert again.result().base_offset == 0
    assert bench.stream.next_offset == 1


@pytest.mark.parametrize("level", [1, CHECKSUM_LEVEL])
async def test_a_leader_that_followed_the_log_tells_them_apart_as_the_one_before_did(
    make_bench: Any, level: int
) -> None:
    bench, other = make_bench().ready(), make_bench(level=level)
    publish(bench, FORGED)
    for entry in bench.log.entries:
        other.log.entries.append(entry)
        other.stream.recovered(entry)
    other.log.commit()
    other.log.lead()
    with pytest.raises(UnknownProducer):
        publish(other, OWN)


async def test_a_leader_that_began_with_a_manifest_tells_them_apart(make_bench: Any) -> None:
    bench = make_bench(level=CHECKSUM_LEVEL).ready()
    publish(bench, FORGED)
    bench.log.commit()
    other = restored(make_bench, bench)
    with pytest.raises(UnknownProducer):
        publish(other, OWN)
    assert publish(other, FORGED).result().base_offset == 0


@pytest.mark.parametrize("was_append_time", [False, True])
@pytest.mark.parametrize("is_append_time", [False, True])
@pytest.mark.parametrize("says_append_time", [False, True])
async def test_a_resend_is_recognised_whatever_time_the_home_wrote_into_the_first(
    make_bench: Any, was_append_time: bool, is_append_time: bool, says_append_time: bool
) -> None:
    bench = make_bench().ready()
    raw = bytearray(build_batch([(OWN, None, ())], timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=0))
    if says_append_time:  # a client that writes the attribute by itself
        stamp_time(raw, parse_header(raw), append_ms=5)

    def send() -> Any:
        return bench.stream.publish(Publish.built(raw, received_ns=1, entry_region=1))

    bench.stream.uses_append_time = was_append_time
    send()
    bench.log.commit()
    bench.stream.uses_append_time = is_append_time
    bench.clock.now_ns += 60_000_000_000
    assert send().result().base_offset == 0
    assert bench.stream.next_offset == 1
    with pytest.raises(UnknownProducer):
        publish(bench, FORGED)


async def test_a_manifest_of_before_checksums_still_recognises_a_resend(make_bench: Any) -> None:
    bench = make_bench(level=CHECKSUM_LEVEL - 1).ready()
    publish(bench, OWN)
    bench.log.commit()
    assert publish(restored(make_bench, bench), OWN).result().base_offset == 0


def restored(make_bench: Any, bench: Any) -> Any:
    """Return a leader that knows the state of `bench` from its snapshot only."""
    other = make_bench(level=bench.level)
    other.stream.restore(SimpleNamespace(index=bench.stream.commit_index, state=bench.stream.snapshot()))
    other.log.entries += bench.log.entries
    other.log.applied = len(other.log.entries)
    other.log.lead()
    return other
