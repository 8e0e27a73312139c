"""While a leader hands over nothing is refused that it may store in a moment, and nothing passes what was held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, NotLeader, OutOfOrderSequence
from georelay.wire.batch import RecordDraft, build_batch, iterate_records
from mesh.replication.publish import Publish
from region.broker.storing import store
from region.topics import held_publishes


def publish(bench: Any, value: bytes, sequence: int = -1) -> Any:
    """Publish one record, without a producer as long as `sequence` says none, as the broker does for its clients."""
    numbers: dict[str, Any] = {} if sequence < 0 else {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    raw = bytearray(build_batch([RecordDraft(value)], timestamps_ms=1, **numbers))
    answer = store(bench.stream, Publish.built(raw, received_ns=1, entry_region=1), None)
    raw[:] = bytes(len(raw))  # the buffer of the connection is used again
    return answer


def stored(bench: Any) -> list[bytes]:
    entries = [entry for entry in bench.log.entries if entry.record_count]
    return [record.value or b"" for entry in entries for record in iterate_records(entry.payload)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_publishes, "LOOK_S", 0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_leader_that_serves_on_stores_what_came_meanwhile_in_its_order(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.log.hands_over = True
    answers = [publish(bench, b"0"), publish(bench, b"1")]
    await turns()
    assert stored(bench) == [] and not any(answer.done() for answer in answers)
    bench.log.hands_over = False  # its heir did not take over in time
    answers.append(publish(bench, b"2"))
    await turns()
    bench.log.commit()
    await turns()
    assert stored(bench) == [b"0", b"1", b"2"]
    assert [answer.result().base_offset for answer in answers] == [0, 1, 2]


async def test_a_leader_that_leads_no_more_refuses_all_of_it_and_names_the_next(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.log.hands_over = True
    answers = [publish(bench, b"0"), publish(bench, b"1")]
    bench.log.step_down()
    for answer in answers:
        with pytest.raises(NotLeader) as refused:
            await answer
        assert refused.value.leader == 1002
    assert stored(bench) == []


@pytest.mark.parametrize("leads", [False, True])
async def test_what_is_held_behind_a_batch_that_comes_again_is_no_gap_of_its_producer(
    make_bench: Any, leads: bool
) -> None:
    bench = make_bench().ready()
    bench.log.hands_over = True
    answers = [publish(bench, b"0", sequence=0), publish(bench, b"1", sequence=1)]
    bench.log.hands_over, bench.log.leads, bench.log.busy = False, leads, True  # the stream has not heard of it
    await turns()
    for answer in answers:
        with pytest.raises(Busy if leads else NotLeader):
            await answer
    assert stored(bench) == []


async def test_a_log_that_leads_no_more_calls_nothing_a_gap_that_comes_behind_what_it_refused(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.log.leads = False  # the stream has not heard of it
    for sequence in (0, 1):
        with pytest.raises(NotLeader):
            publish(bench, b"v", sequence=sequence)
    bench.log.leads = True
    with pytest.raises(OutOfOrderSequence):
        publish(bench, b"v", sequence=1)


async def test_what_is_held_is_bounded(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_publishes, "HELD_MAX", 2)
    bench = make_bench().ready()
    bench.log.hands_over = True
    kept = [publish(bench, b"0"), publish(bench, b"1")]
    with pytest.raises(Busy, match="2 batches wait"):
        publish(bench, b"2")
    bench.log.hands_over = False
    await turns()
    bench.log.commit()
    await turns()
    assert [answer.result().base_offset for answer in kept] == [0, 1]


async def test_a_publish_whose_client_has_gone_is_stored_and_disturbs_nobody(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.log.hands_over = True
    gone, waits = publish(bench, b"0"), publish(bench, b"1")
    gone.cancel()
    bench.log.hands_over = False
    await turns()
    bench.log.commit()
    await turns()
    assert waits.result().base_offset == 1
