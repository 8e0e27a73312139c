"""Tells the region's brokers which groups this one leads; what they tell goes into the leader book."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from georelay.ids import BrokerId, GroupId, Term
from region.multiraft.group import Group
from region.multiraft.leader_book import LeaderBook, decode_hints, encode_hints
from region.multiraft.transport import FrameKind, Lane, Transport


class LeaderHints:
    """Both directions of the hints of one broker."""

    def __init__(self, *, me: BrokerId, book: LeaderBook, transport: Callable[[], Transport | None]) -> None:
        self._me = me
        self._book = book
        self._transport = transport

    def received(self, peer: BrokerId, body: memoryview) -> None:
        """Take the hints of a peer, which speaks for itself only. Raises ValueError."""
        for group_id, term, leader in decode_hints(body):
            if leader != peer:
                raise ValueError(f"broker {peer} says that {leader} leads group {group_id}")
            self._book.learn(group_id, term, leader)

    def tell_new_peer(self, peer: BrokerId, groups: Mapping[GroupId, Group]) -> None:
        """Tell a broker that has just connected what this one leads."""
        self._send([peer], [group for group in groups.values() if group.node.is_leader])

    def leader_changed(self, group: Group) -> None:
        """Note who leads a group, and tell everybody when it is this broker."""
        leader = BrokerId(group.node.leader_id)
        if leader > 0:
            self._book.learn(group.group_id, Term(group.node.term), leader)
        transport = self._transport()
        if leader == self._me and transport is not None:
            self._send(transport.peers, [group])

    def _send(self, peers: Iterable[BrokerId], groups: list[Group]) -> None:
        transport = self._transport()
        if transport is None or not groups:
            return
        body = encode_hints((group.group_id, Term(group.node.term), self._me) for group in groups)
        for peer in peers:
            transport.send(peer, Lane.CONTROL, FrameKind.HINTS, [body])
