"""A publish and its copies: what is acknowledged when, and what a crash leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, OutcomeUnknown, PolicyViolation, Unavailable
from georelay.ids import is_brokers_own
from georelay.wire.batch import Compression, build_batch, iterate_records, parse_header, validate
from region.routing import router
from region.routing.binding import Binding, HeaderRule, Match
from region.routing.copy_core import copy_of


async def test_without_a_binding_a_publish_waits_for_nothing(broker: Any) -> None:
    assert broker.publish("a").done()


async def test_a_publish_is_answered_when_all_its_copies_are_stored(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.bind("two", "bills")
    answer = broker.publish("a", "b")
    assert not answer.done()
    assert (await answer).base_offset == 0
    assert broker.targets.values("audit") == ["a", "b"] == broker.targets.values("bills")


async def test_a_copy_that_fails_delays_the_answer_and_is_made_in_the_end(broker: Any) -> None:
    broker.targets.errors = [Unavailable("no leader")] * 3
    await broker.bind("one", "audit")
    answer = broker.publish("a")
    await broker.settle()
    assert not answer.done()
    async with asyncio.timeout(5):
        await answer
    assert broker.targets.values("audit") == ["a"]


async def test_one_failing_copy_of_two_keeps_the_answer_back(broker: Any) -> None:
    await broker.bind("good", "bills")
    await broker.bind_to_deleted("bad")
    answer = broker.publish("a")
    await broker.settle()
    assert broker.targets.values("bills") == ["a"]
    assert not answer.done()


async def test_after_a_while_the_publisher_is_told_that_it_does_not_know(broker: Any) -> None:
    await broker.bind_to_deleted("bad")
    answer = broker.publish("a")
    await broker.settle()
    broker.now_ns = round((router.WAIT_S + 1) * 1e9)
    broker.routing.sweep()
    with pytest.raises(OutcomeUnknown, match="gone"):
        await answer


async def test_a_copy_whose_answer_was_lost_is_stored_once(broker: Any) -> None:
    await broker.bind("one", "audit")
    broker.targets.lost_answers = [OutcomeUnknown("lost")]
    async with asyncio.timeout(5):
        await broker.publish("a")
    await broker.publish("b")
    assert broker.targets.values("audit") == ["a", "b"]


async def test_a_new_leader_makes_the_copies_that_are_left_and_no_other(broker: Any) -> None:
    await broker.bind("one", "audit")
    for number in range(7):
        await broker.publish(f"r{number}")
    answers = [broker.publish(f"late{number}") for number in range(6)]
    await broker.replace_leader()
    await broker.settle(400)
    wanted = [f"r{number}" for number in range(7)] + [f"late{number}" for number in range(6)]
    assert broker.targets.values("audit") == wanted
    for answer in answers:
        assert answer.done()
        assert answer.exception() is None or isinstance(answer.exception(), OutcomeUnknown)


@pytest.mark.parametrize("unsaved", range(1, 5))
async def test_copies_that_were_stored_and_not_saved_are_not_stored_again(broker: Any, unsaved: int) -> None:
    await broker.bind("one", "audit")
    await broker.publish("first")
    await broker.settle()
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    log.hold()  # from here on nothing is saved
    answers = [broker.publish(f"r{number}") for number in range(unsaved)]
    await broker.settle()
    stored = broker.targets.values("audit")
    assert len(stored) == 1 + unsaved or len(stored) == 2
    log.depose()
    await broker.settle()
    log._pending.clear()
    log._held = False
    log.elect()
    await broker.replace_leader()
    await broker.settle(600)
    assert broker.targets.values("audit") == ["first", *(f"r{number}" for number in range(unsaved))]
    del answers


async def test_two_leaders_at_once_make_each_copy_once(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    other = broker.new_routing(broker.source)
    other.sweep()
    for number in range(20):
        broker.publish(f"r{number}")
        await broker.settle(5)
    await broker.settle(400)
    await other.close()
    assert broker.targets.values("audit") == ["a", *(f"r{number}" for number in range(20))]


async def test_a_target_that_forgot_the_producer_gets_the_next_copies_of_a_new_one(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    await broker.settle()
    broker.targets.known.clear()
    async with asyncio.timeout(5):
        await broker.publish("b")
    assert broker.targets.values("audit") == ["a", "b"]


async def test_copies_are_made_under_a_producer_id_that_clients_may_not_use(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    assert [is_brokers_own(producer) for _, _, producer in broker.targets.known] == [True]


@pytest.mark.parametrize("unsaved", range(5))
async def test_a_producer_id_of_before_is_replaced_and_no_copy_is_made_twice(
    broker: Any, monkeypatch: pytest.MonkeyPatch, unsaved: int
) -> None:
    with monkeypatch.context() as before:
        before.setattr("region.routing.copier.brokers_own", lambda producer_id: producer_id)
        await broker.bind("one", "audit")
        await broker.publish("first")
        log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
        log.hold()  # from here on nothing is saved
        answers = [broker.publish(f"r{number}") for number in range(unsaved)]
        await broker.settle()
        log.depose()
        await broker.settle()
        log._pending.clear()
        log._held = False
        log.elect()
    await broker.replace_leader()
    await broker.settle(600)
    for number in range(6):
        await broker.publish(f"late{number}")
    wanted = ["first", *(f"r{number}" for number in range(unsaved)), *(f"late{number}" for number in range(6))]
    assert broker.targets.values("audit") == wanted
    assert [is_brokers_own(producer) for _, _, producer in broker.targets.known] == [False, True]
    del answers


async def test_a_target_that_got_more_partitions_is_copied_to_on(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    broker.targets.partitions["audit"] = 3
    for number in range(4):
        async with asyncio.timeout(5):
            await broker.publish(f"r{number}")
    assert broker.targets.values("audit") == ["a", "r0", "r1", "r2", "r3"]


async def test_what_was_stored_before_the_binding_is_not_copied(broker: Any) -> None:
    broker.publish("old")
    await broker.bind("one", "audit")
    await broker.publish("new")
    assert broker.targets.values("audit") == ["new"]


async def test_publishes_go_on_when_the_binding_is_removed(broker: Any) -> None:
    await broker.bind_to_deleted("bad")
    answer = broker.publish("a")
    await broker.settle()
    broker.bindings.clear()
    broker.index += 1
    broker.routing.sweep()
    assert (await answer).base_offset == 0


async def test_transactional_batches_are_refused_before_they_are_stored(broker: Any) -> None:
    await broker.bind("one", "audit")
    raw = build_batch(
        [(b"a", None, ())],
        timestamps_ms=1,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    with pytest.raises(PolicyViolation, match="binding"):
        broker.routing.admit(broker.source, parse_header(raw))


async def test_too_many_waiting_publishes_are_refused_before_they_are_stored(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "WAITING_MAX", 2)
    await broker.bind_to_deleted("bad")
    answers = [broker.publish("a"), broker.publish("b")]
    await broker.settle()
    with pytest.raises(Busy):
        broker.publish("c")
    assert int(broker.source.next_offset) == 2
    del answers


async def test_only_records_with_the_headers_are_copied(broker: Any) -> None:
    await broker.bind("one", "audit", headers=(HeaderRule(name="region", value="eu"),))
    await broker.publish("a", region="us")
    await broker.publish("b", region="eu")
    await broker.publish("c")
    assert broker.targets.values("audit") == ["b"]


async def test_a_batch_that_cannot_be_read_has_no_copies_where_headers_choose_and_the_next_ones_have(
    broker: Any,
) -> None:
    await broker.bind("one", "audit", headers=(HeaderRule(name="region", value="eu"),))
    poison = broker.publish_raw(bytes(build_batch([(b"x", None, ())] * 2, timestamps_ms=1)[:-4]) + bytes(4))
    good = broker.publish("a", region="eu")
    async with asyncio.timeout(5):
        assert ((await poison).base_offset, (await good).base_offset) == (0, 2)
    assert broker.targets.values("audit") == ["a"]


# --- one copy ---------------------------------------------------------------------------------------


def test_without_header_rules_the_records_of_a_copy_are_the_same_bytes() -> None:
    raw = build_batch(
        [(b"v" * 100, b"k", (("h", b"x"),))] * 50, timestamps_ms=7, compression=Compression.GZIP, producer_id=9,
        producer_epoch=3, base_sequence=77,
    )  # fmt: skip
    made = copy_of(raw, Binding(name="b", source="s", target="t"), producer_id=5, sequence=2**31 + 4)
    assert made is not None
    header = validate(made, from_client=True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 0, 4)
    assert made[61:] == raw[61:]


@pytest.mark.parametrize(("match", "wanted"), [(Match.ALL, [b"both"]), (Match.ANY, [b"both", b"one", b"other"])])
def test_header_rules_choose_records(match: Match, wanted: list[bytes]) -> None:
    rules = (HeaderRule(name="a", value="1"), HeaderRule(name="b"))
    raw = build_batch(
        [
            (b"both", None, (("a", b"1"), ("b", None))),
            (b"one", None, (("a", b"1"),)),
            (b"other", None, (("b", b"any"),)),
            (b"wrong", None, (("a", b"2"),)),
        ],
        timestamps_ms=[1, 2, 3, 4],
    )
    binding = Binding(name="b", source="s", target="t", match=match, headers=rules)
    made = copy_of(raw, binding, producer_id=5, sequence=0)
    assert made is not None
    validate(made, from_client=True)
    assert [record.value for record in iterate_records(made)] == wanted
    none = Binding(name="b", source="s", target="t", headers=(HeaderRule(name="missing"),))
    assert copy_of(raw, none, producer_id=5, sequence=0) is None


async def test_no_more_copies_are_made_beyond_what_is_saved_than_a_target_recognises(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("first")
    await broker.settle()
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    log.hold()
    answers = [broker.publish(f"r{number}", commit=False) for number in range(12)]
    broker.source.commit()
    await broker.settle()
    assert broker.targets.values("audit") == ["first", "r0", "r1", "r2", "r3"]
    log.release()
    await broker.settle(400)
    assert broker.targets.values("audit") == ["first", *(f"r{number}" for number in range(12))]
    assert all(answer.done() for answer in answers)


async def test_many_who_wait_are_given_up_without_comparing_each_with_all(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind_to_deleted("bad")
    answers = [broker.publish(f"r{number}") for number in range(200)]
    await broker.settle()
    compared: list[int] = []
    plain = router._Waiting.__eq__

    def counted(self: Any, other: object) -> bool:
        compared.append(1)
        return bool(plain(self, other))

    monkeypatch.setattr(router._Waiting, "__eq__", counted)
    broker.now_ns = round((router.WAIT_S + 1) * 1e9)
    broker.routing.sweep()
    assert all(isinstance(answer.exception(), OutcomeUnknown) for answer in answers)
    assert not compared
