"""One member of a pool, packet by packet: probes, helpers, nacks, TCP, loops."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mesh.gossip import codec as c
from mesh.gossip.compound import flatten, make_compound
from mesh.gossip.delegate import SilentDelegate
from mesh.gossip.effects import BroadcastSent, Effect, MemberJoined, PushPull, SendPacket, StreamPing
from mesh.gossip.faults import CodecError, MergeRefused
from mesh.gossip.member import OUR_VERSIONS, Address, Member, MemberState, Versions
from mesh.gossip.memberlist_core import PINGS_PER_PACKET_MAX, Memberlist
from mesh.gossip.probe_core import RELAYS_MAX
from mesh.gossip.timing import LAN

START = 1000.0
ME: Address = ("10.0.0.100", 7946)


class Above(SilentDelegate):
    """A layer above that remembers."""

    def __init__(self) -> None:
        self.pings: list[tuple[str, float, bytes]] = []
        self.bodies: list[bytes] = []
        self.states: list[bytes] = []
        self.rumours: list[bytes] = []

    def ack_payload(self) -> bytes:
        return b"here"

    def ping_completed(self, member: Member, rtt_s: float, payload: bytes) -> None:
        if payload == b"bad":
            raise CodecError("no coordinate")
        self.pings.append((member.name, round(rtt_s, 6), payload))

    def user_packet(self, body: bytes) -> None:
        if body == b"bad":
            raise CodecError("no message")
        self.bodies.append(body)

    def has_broadcasts(self) -> bool:
        return bool(self.rumours)

    def user_broadcasts(self, *, overhead_bytes: int, limit_bytes: int) -> list[bytes]:
        found = [body for body in self.rumours if len(body) + overhead_bytes <= limit_bytes]
        self.rumours = []
        return found

    def local_state(self, *, join: bool) -> bytes:
        return b"mine"

    def merge_remote_state(self, raw: bytes, *, join: bool) -> None:
        if raw == b"bad":
            raise CodecError("no state")
        self.states.append(raw)


class Table:
    """A memberlist that knows `count` others, named m0, m1, ..."""

    def __init__(self, count: int, versions: Versions = OUR_VERSIONS) -> None:
        self.above = Above()
        self.now = START
        self.list = Memberlist(
            name="me", address=ME, meta=b"", timing=LAN, rng=random.Random(4), incarnation=50, delegate=self.above
        )
        self.list.start(START)
        for number in range(count):
            self.receive(
                c.Alive(incarnation=1, name=f"m{number}", address=address(number), meta=b"", versions=versions)
            )
        # Rumours about them are told, so that packets hold nothing but what a test is about.
        self.list._queue.clear()
        self.take()

    def receive(self, *messages: c.Message, source: Address = ("10.9.9.9", 1)) -> None:
        self.list.packet_received(make_compound([c.encode(message) for message in messages]), source, self.now)

    def take(self) -> list[Effect]:
        return self.list.take()

    def sent(self) -> list[tuple[Address, list[c.Message]]]:
        """Return what was sent since the last call, read."""
        packets = [effect for effect in self.take() if isinstance(effect, SendPacket)]
        return [(packet.address, [c.decode(body) for body in flatten(packet.messages)]) for packet in packets]

    def until_ping(self) -> tuple[str, Address, c.Ping]:
        """Tick on until a ping goes out."""
        for _ in range(100):
            self.now = max(self.now, self.list.next_due())
            self.list.tick(self.now)
            for target, messages in self.sent():
                if isinstance(messages[0], c.Ping):
                    return messages[0].name, target, messages[0]
        raise AssertionError("no ping")

    def pass_time(self, seconds: float, *, answer: bool = False) -> list[Effect]:
        """Tick at every due time of the next seconds, answer pings if wanted; return the effects."""
        end, effects = self.now + seconds, list[Effect]()
        while self.list.next_due() <= end:
            self.now = max(self.now, self.list.next_due())
            self.list.tick(self.now)
            fresh = self.take()
            effects += fresh
            packets = [effect for effect in fresh if answer and isinstance(effect, SendPacket)]
            for body in (body for packet in packets for body in flatten(packet.messages)):
                message = c.decode(body)
                if isinstance(message, c.Ping):
                    self.receive(c.Ack(seq_no=message.seq_no))
        self.now = end
        return effects


def address(number: int) -> Address:
    return (f"10.0.0.{1 + number}", 7946)


def test_a_ping_for_us_is_answered_where_it_wants_and_one_for_another_is_not() -> None:
    table = Table(0)
    table.receive(c.Ping(seq_no=7, name="me"), source=("10.1.1.1", 99))
    table.receive(c.Ping(seq_no=8, name="me", source=("10.2.2.2", 5)), source=("10.1.1.1", 99))
    table.receive(c.Ping(seq_no=9, name=""), source=("10.1.1.1", 99))
    table.receive(c.Ping(seq_no=9, name="other"))
    assert table.sent() == [
        (("10.1.1.1", 99), [c.Ack(seq_no=7, payload=b"here")]),
        (("10.2.2.2", 5), [c.Ack(seq_no=8, payload=b"here")]),
        (("10.1.1.1", 99), [c.Ack(seq_no=9, payload=b"here")]),
    ]


def test_a_direct_answer_in_time_is_a_round_trip_for_the_layer_above() -> None:
    table = Table(1)
    name, target, ping = table.until_ping()
    assert (name, target, ping.source) == ("m0", address(0), ME)
    table.now += 0.123
    table.receive(c.Ack(seq_no=ping.seq_no, payload=b"there"))
    table.receive(c.Ack(seq_no=ping.seq_no, payload=b"again"))
    assert table.above.pings == [("m0", 0.123, b"there")]
    assert table.list.counts["ack.late"] == 1


def test_a_payload_that_the_layer_above_refuses_is_counted() -> None:
    table = Table(1)
    _, _, ping = table.until_ping()
    table.receive(c.Ack(seq_no=ping.seq_no, payload=b"bad"))
    assert table.list.counts["ack.bad_payload"] == 1
    assert table.list.awareness == 0


def test_an_answer_after_the_probe_timeout_counts_but_is_no_round_trip() -> None:
    table = Table(3)
    _, _, ping = table.until_ping()
    table.pass_time(0.7)
    table.receive(c.Ack(seq_no=ping.seq_no, payload=b"there"))
    table.pass_time(0.3)
    assert table.above.pings == []
    assert all(member.state is MemberState.ALIVE for member in table.list.members())


def test_without_an_answer_three_others_and_tcp_try_then_the_member_is_suspected() -> None:
    table = Table(5)
    name, target, ping = table.until_ping()
    effects = table.pass_time(0.5)
    packets = [effect for effect in effects if isinstance(effect, SendPacket)]
    asked = {packet.address: c.decode(flatten(packet.messages)[0]) for packet in packets}
    assert len(asked) == 3 and target not in asked
    assert set(asked.values()) == {
        c.IndirectPing(seq_no=ping.seq_no, target=target, name=name, wants_nack=True, source=ME, source_name="me")
    }
    (stream,) = [effect for effect in effects if isinstance(effect, StreamPing)]
    assert (stream.address, c.decode(stream.blob)) == (target, ping)
    table.pass_time(0.4)
    assert table.list.member(name).state is MemberState.ALIVE  # type: ignore[union-attr]
    table.pass_time(0.2)
    assert table.list.member(name).state is MemberState.SUSPECT  # type: ignore[union-attr]


@pytest.mark.parametrize(("nacks", "awareness"), [(0, 3), (1, 2), (3, 0), (9, 0)])
def test_nacks_that_are_missing_cost_our_own_health(nacks: int, awareness: int) -> None:
    table = Table(5)
    _, _, ping = table.until_ping()
    table.pass_time(0.6)
    for _ in range(nacks):
        table.receive(c.Nack(seq_no=ping.seq_no))
    table.receive(c.Nack(seq_no=ping.seq_no + 1))
    table.pass_time(0.45)
    assert table.list.awareness == awareness


def test_a_failed_probe_without_helpers_costs_one_point_and_a_good_one_gives_it_back() -> None:
    table = Table(1)
    table.until_ping()
    table.pass_time(0.95)
    _, _, ping = table.until_ping()  # the next one goes out as soon as the first has failed
    assert table.list.awareness == 1
    table.receive(c.Ack(seq_no=ping.seq_no))
    assert table.list.awareness == 0


def test_bad_health_stretches_the_wait_for_an_answer() -> None:
    table = Table(1)
    table.list.stalled(3.0, table.now)
    assert table.list.awareness == 3
    name, _, _ = table.until_ping()
    table.pass_time(3.9)
    assert table.list.member(name).state is MemberState.ALIVE  # type: ignore[union-attr]
    table.pass_time(0.2)
    assert table.list.member(name).state is MemberState.SUSPECT  # type: ignore[union-attr]


def test_a_stall_shorter_than_a_probe_timeout_costs_nothing() -> None:
    table = Table(1)
    table.list.stalled(0.4, table.now)
    assert table.list.awareness == 0


def test_a_tcp_answer_saves_a_member_whose_udp_path_is_broken() -> None:
    table = Table(1)
    name, _, ping = table.until_ping()
    table.pass_time(0.6)
    table.list.stream_ping_answered(ping.seq_no, c.encode(c.Ack(seq_no=ping.seq_no)), table.now)
    table.pass_time(0.5)
    assert table.list.member(name).state is MemberState.ALIVE  # type: ignore[union-attr]
    assert table.list.counts["probe.tcp_only"] == 1
    for reply in (c.encode(c.Nack(seq_no=1)), c.encode(c.Ack(seq_no=2)), b""):
        with pytest.raises(CodecError):
            table.list.stream_ping_answered(1, reply, table.now)


def test_members_of_old_versions_get_no_tcp_ping_and_send_no_nacks() -> None:
    table = Table(4, versions=Versions(1, 2, 2, 2, 5, 5))
    table.until_ping()
    effects = table.pass_time(0.5)
    asks = [
        c.decode(flatten(effect.messages)[0])
        for effect in effects
        if isinstance(effect, SendPacket) and effect.messages[0] == c.MessageType.INDIRECT_PING
    ]
    assert len(asks) == 3
    assert all(isinstance(ask, c.IndirectPing) and not ask.wants_nack for ask in asks)
    assert not any(isinstance(effect, StreamPing) for effect in effects)


def test_a_suspect_hears_of_it_with_the_ping_and_with_a_checksum() -> None:
    table = Table(1)
    table.receive(c.Suspect(incarnation=1, name="m0", accuser="eve"))
    table.list._queue.clear()
    table.take()
    while True:
        table.now = table.list.next_due()
        table.list.tick(table.now)
        packets = [effect for effect in table.take() if isinstance(effect, SendPacket)]
        if packets:
            break
    ping, claim = (c.decode(body) for body in flatten(packets[0].messages))
    assert isinstance(ping, c.Ping)
    assert claim == c.Suspect(incarnation=1, name="m0", accuser="me")
    assert packets[0].with_crc


ASK = c.IndirectPing(seq_no=9, target=address(1), name="m1", wants_nack=True, source=address(0), source_name="m0")


def test_a_helper_pings_with_its_own_number_and_passes_the_answer_on_without_payload() -> None:
    table = Table(2)
    table.receive(ASK)
    ((target, (ping,)),) = table.sent()
    assert isinstance(ping, c.Ping)
    assert (target, ping.name, ping.source) == (address(1), "m1", ME)
    assert ping.seq_no != 9
    table.receive(c.Ack(seq_no=ping.seq_no, payload=b"there"))
    assert table.sent() == [(address(0), [c.Ack(seq_no=9)])]
    assert table.above.pings == []


@pytest.mark.parametrize("wants_nack", [True, False])
def test_a_helper_without_an_answer_says_so_if_it_was_asked_to(wants_nack: bool) -> None:
    table = Table(0)
    table.receive(replace(ASK, wants_nack=wants_nack))
    table.sent()
    effects = table.pass_time(0.5)
    packets = [effect for effect in effects if isinstance(effect, SendPacket)]
    assert [(packet.address, c.decode(packet.messages)) for packet in packets] == (
        [(address(0), c.Nack(seq_no=9))] if wants_nack else []
    )


def test_pings_for_others_are_bounded() -> None:
    table = Table(0)
    for _ in range(RELAYS_MAX // PINGS_PER_PACKET_MAX):
        table.receive(*[ASK] * PINGS_PER_PACKET_MAX)
    assert len(table.sent()) == RELAYS_MAX
    table.receive(ASK)
    assert table.sent() == []
    assert table.list.counts["relay.refused"] == 1


def test_one_packet_is_answered_a_bounded_number_of_times() -> None:
    table = Table(0)
    table.receive(*[c.Ping(seq_no=number, name="me") for number in range(100)])
    assert len(table.sent()) == PINGS_PER_PACKET_MAX


def test_in_one_packet_a_join_is_read_before_the_claim_that_stands_before_it() -> None:
    table = Table(0)
    table.receive(
        c.Dead(incarnation=1, name="bob", accuser="bob"),
        c.Alive(incarnation=1, name="bob", address=address(7), meta=b"", versions=OUR_VERSIONS),
    )
    assert table.list.member("bob").state is MemberState.LEFT  # type: ignore[union-attr]


def test_bad_packets_are_counted_and_never_raise() -> None:
    table = Table(0)
    for raw in (b"\x07", b"\x09\x80", b"\x00\x80", b"\x63", b"\x08bad", c.encode(c.ErrorReply(text="no")), b""):
        table.list.packet_received(raw, ("10.1.1.1", 1), table.now)
    assert table.list.counts["packet.malformed"] == 2
    assert table.list.counts["message.malformed"] == 3
    assert table.list.counts["message.out_of_place"] == 1


def test_user_messages_go_up_and_rumours_from_above_come_down_with_ours() -> None:
    table = Table(1)
    table.list.packet_received(make_compound([c.user_message(b"x"), c.user_message(b"")]), ME, table.now)
    assert table.above.bodies == [b"x", b""]
    table.above.rumours = [b"event"]
    table.list.set_meta(b"tags", table.now)
    packets = [effect for effect in table.pass_time(0.2) if isinstance(effect, SendPacket)]
    bodies = flatten(packets[0].messages)
    assert [body[0] for body in bodies] == [c.MessageType.ALIVE, c.MessageType.USER]
    assert packets[0].with_crc and packets[0].address == address(0)


def test_packets_keep_their_budget() -> None:
    table = Table(60)
    for number in range(60):
        table.receive(c.Suspect(incarnation=1, name=f"m{number}", accuser="eve" * 30))
    table.above.rumours = [bytes(100)] * 20
    sizes = [len(effect.messages) for effect in table.pass_time(0.3) if isinstance(effect, SendPacket)]
    assert sizes and max(sizes) <= 1300


def test_gossip_goes_to_the_dead_for_a_while_and_not_to_those_who_left() -> None:
    table = Table(2)
    table.receive(c.Dead(incarnation=1, name="m0", accuser="eve"), c.Dead(incarnation=1, name="m1", accuser="m1"))
    addresses = {effect.address for effect in table.pass_time(2.0) if isinstance(effect, SendPacket)}
    assert addresses == {address(0)}


def test_a_round_of_gossip_without_rumours_wakes_nobody_and_the_next_rumour_leaves_at_once() -> None:
    table = Table(3)
    table.pass_time(3.2, answer=True)
    assert table.list.next_due() == table.list._timers_due() > table.list._gossip_at
    table.sent()
    table.above.rumours = [b"news"]
    assert table.list.next_due() <= table.now
    table.list.tick(table.now)
    sent = [effect for effect in table.take() if isinstance(effect, SendPacket)]
    assert [flatten(packet.messages) for packet in sent] == [[c.user_message(b"news")]]
    assert table.list.awareness == 0, "late gossip is no stall"
    table.above.rumours = [b"more"]
    assert table.list.next_due() == table.now + LAN.gossip_interval_s


def test_who_is_alone_with_its_rumours_has_no_rounds_of_gossip() -> None:
    table = Table(0)
    table.pass_time(3.2)
    table.above.rumours = [b"news"]
    assert table.list.next_due() == table.list._timers_due()


def test_the_dead_are_forgotten_after_a_while() -> None:
    table = Table(2)
    table.receive(c.Dead(incarnation=1, name="m0", accuser="m0"))
    assert table.list.member_count == 3
    assert table.list.alive_count == 2
    for _ in range(40):
        _, _, ping = table.until_ping()
        table.receive(c.Ack(seq_no=ping.seq_no))
    assert table.list.member_count == 2


def test_new_tags_are_sent_out_before_it_is_said_that_they_are() -> None:
    table = Table(1)
    table.list.set_meta(b"tags", table.now)
    assert BroadcastSent(name="me") not in table.take()
    assert table.list.local.incarnation == 51
    assert BroadcastSent(name="me") in table.pass_time(1.0)


def test_alone_there_is_nobody_to_tell() -> None:
    table = Table(0)
    table.list.leave(table.now)
    assert BroadcastSent(name="me") in table.take()
    assert table.list.is_leaving


def test_a_farewell_is_told_and_pings_are_answered_after_it() -> None:
    table = Table(1)
    table.list.leave(table.now)
    assert BroadcastSent(name="me") in table.pass_time(1.0)
    table.receive(c.Ping(seq_no=1, name="me"))
    assert table.sent()[0][1][0] == c.Ack(seq_no=1, payload=b"here")


def other_state(join: bool, user_state: bytes = b"theirs") -> bytes:
    row = c.MemberRow(
        name="bob", address=address(3), meta=b"", incarnation=1, state=MemberState.ALIVE, versions=OUR_VERSIONS
    )
    return c.encode_push_pull(c.PushPull(is_join=join, rows=(row,), user_state=user_state))


def test_a_state_is_answered_with_ours_from_before_and_merged() -> None:
    table = Table(1)
    reply = table.list.stream_received(other_state(join=True), table.now)
    assert reply is not None
    mine = c.decode_push_pull(reply)
    assert (mine.is_join, [row.name for row in mine.rows], mine.user_state) == (True, ["me", "m0"], b"mine")
    assert table.list.member("bob") is not None
    assert table.above.states == [b"theirs"]
    assert any(isinstance(effect, MemberJoined) for effect in table.take())


def test_a_bad_state_of_the_layer_above_does_not_cost_the_members() -> None:
    table = Table(0)
    table.list.merge_stream_state(other_state(join=False, user_state=b"bad"), table.now)
    assert table.list.member("bob") is not None
    assert table.list.counts["user_state.malformed"] == 1


def test_other_requests_over_tcp() -> None:
    table = Table(0)
    assert table.list.stream_received(c.encode(c.Ping(seq_no=3, name="me")), table.now) == c.encode(c.Ack(seq_no=3))
    assert table.list.stream_received(c.encode(c.Ping(seq_no=3, name="you")), table.now) is None
    assert table.list.stream_received(c.stream_user_message(b"x"), table.now) is None
    assert table.above.bodies == [b"x"]
    for blob in (b"", b"\x06", c.encode(c.Nack(seq_no=1)), other_state(join=False)[:-1]):
        with pytest.raises(CodecError):
            table.list.stream_received(blob, table.now)


def test_a_refusal_instead_of_a_state_says_why() -> None:
    with pytest.raises(MergeRefused, match="too many"):
        Table(0).list.merge_stream_state(c.error_reply("too many"), START)


def test_a_second_state_exchange_follows_a_join_after_a_second() -> None:
    table = Table(0)
    table.list.join(address(3), table.now)
    assert table.take() == [PushPull(address=address(3), name="", join=True)]
    table.list.merge_stream_state(other_state(join=True), table.now)
    pushes = [effect for effect in table.pass_time(1.0) if isinstance(effect, PushPull)]
    assert pushes == [PushPull(address=address(3), name="bob", join=False)]


def test_states_are_exchanged_with_one_living_member_per_period() -> None:
    table = Table(3)
    table.receive(c.Dead(incarnation=1, name="m0", accuser="m0"))
    exchanges = [effect for effect in table.pass_time(600.0, answer=True) if isinstance(effect, PushPull)]
    assert len(exchanges) in (19, 20, 21)
    assert {exchange.name for exchange in exchanges} == {"m1", "m2"}


def test_a_late_tick_is_our_own_stall_and_accuses_nobody() -> None:
    table = Table(3)
    name, _, ping = table.until_ping()
    table.receive(c.Suspect(incarnation=1, name="m0" if name != "m0" else "m1", accuser="eve"))
    table.now += 30.0  # longer than any suspicion in a pool of four
    table.list.tick(table.now)
    assert table.list.awareness >= 7
    assert all(member.state is not MemberState.DEAD for member in table.list.members())
    table.receive(c.Ack(seq_no=ping.seq_no))
    assert table.list.member(name).state is MemberState.ALIVE  # type: ignore[union-attr]


def test_names_and_tags_out_of_bounds_are_refused() -> None:
    table = Table(0)
    with pytest.raises(ValueError, match="513 bytes"):
        table.list.set_meta(b"m" * 513, START)
    for name, meta in (("a b", b""), ("a", b"m" * 513)):
        with pytest.raises(ValueError, match="128"):
            Memberlist(
                name=name,
                address=ME,
                meta=meta,
                timing=LAN,
                rng=random.Random(1),
                incarnation=1,
                delegate=SilentDelegate(),
            )


def test_before_the_start_nothing_is_due() -> None:
    fresh = Memberlist(
        name="a", address=ME, meta=b"", timing=LAN, rng=random.Random(1), incarnation=1, delegate=SilentDelegate()
    )
    assert fresh.next_due() == float("inf")
    assert (fresh.stream_state(join=False)[0], fresh.incarnation) == (6, 1)
