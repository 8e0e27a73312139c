"""A link carries opaque frames between two brokers, in order, until it closes; it never loses one silently.

Carriers of this form: framed TCP (link_framed.py) between regions, gRPC (link_grpc.py) where one of both is of an
older version, the peer transport inside a region. What the frames mean is
`link_endpoint.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mesh.replication.settings import BrokerAddress


class LinkReceiver(Protocol):
    """What a link tells its owner; called on the event loop, never from inside `send` or `close`."""

    def frame_received(self, frame: bytes) -> None:
        """One whole frame, in order."""

    def link_writable(self) -> None:
        """The link takes the next frame."""

    def link_closed(self, reason: str) -> None:
        """The link is gone; called once, also after `close`."""


class Link(Protocol):
    """One ordered, reliable, bidirectional carrier of frames."""

    @property
    def peer(self) -> str:
        """Address of the other end, for people."""

    @property
    def peer_names(self) -> frozenset[str] | None:
        """Names in the certificate of the dialling end, None without TLS or at the dialling end itself."""

    @property
    def gather_ms(self) -> int:
        """How long a link that is busy waits for more parts of a frame: the dearer a frame, the longer."""

    @property
    def is_writable(self) -> bool:
        """Whether `send` may be called now: the frame before was taken by the carrier."""

    def quiet_ns(self) -> int | None:
        """Return for how long nothing was heard of the other end's broker by other means; None: there are none.

        While there are, no signs of life are sent on the link.
        """

    def start(self, receiver: LinkReceiver) -> None:
        """Begin to receive."""

    def met(self) -> None:
        """The other end has shown that it is a broker of the mesh: from now on its frames may be large."""

    def send(self, frame: bytes) -> None:
        """Hand over one frame; only while `is_writable`. Frames of a link that closes are lost."""

    def close(self, reason: str) -> None:
        """Close at once, both directions."""


Dial = Callable[[BrokerAddress], Link]  # a link that reports its failure through link_closed


class Listener(Protocol):
    """What accepts links for one broker."""

    async def start(self, listen: str) -> int:
        """Listen on "host:port" and return the bound port. Raises Unavailable when it cannot be bound."""

    async def stop(self) -> None:
        """Stop listening and end every accepted link."""


MakeListener = Callable[[Callable[[Link], None]], Listener]  # told what to do with each accepted link


class NearLinks(Protocol):
    """What carries links between brokers of one region."""

    def serve(self, accepted: Callable[[Link], None]) -> None:
        """Take links from now on; `accepted` is told of each and must call its `start`."""

    def stop(self) -> None:
        """Take no more."""

    def dial(self, target: BrokerAddress, *, otherwise: Dial) -> Link:
        """Return a link to a broker; `otherwise` makes it to who is not of the region, or cannot do this."""
