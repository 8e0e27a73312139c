"""What the sans-IO half of gossip raises: one family, so that a shell drops and counts with one `except`.

Nothing else leaves a decoder, whatever the bytes are.
"""

from __future__ import annotations

from typing import Final

# Labels of PacketError: few and fixed, because they become labels of a metric.
PACKET_REASONS: Final = frozenset({"label", "plaintext", "no_key", "crc", "compress", "size", "truncated", "version"})


class GossipFault(ValueError):
    """Base of the family; never raised itself."""


class CodecError(GossipFault):
    """Bytes that are no message of the protocol, or one beyond a limit."""


class PacketError(GossipFault):
    """An envelope that does not open.

    Args:
        reason: one of PACKET_REASONS; "no_key" means that none of our keys opens it: another mesh, or a key that was
            rotated while the sender was down.
        text: one line for the operator, without any of the bytes.
    """

    def __init__(self, reason: str, text: str) -> None:
        assert reason in PACKET_REASONS, reason
        super().__init__(text)
        self.reason = reason


class KeyFault(GossipFault):
    """A key of the wrong length, one that is not on the ring, or the removal of the primary key."""


class CoordinateFault(GossipFault):
    """A coordinate or a round-trip time that cannot be true: other dimension, not finite, negative, over 10 s."""


class MergeRefused(GossipFault):
    """The peer of a push/pull answered with an error instead of its state."""
