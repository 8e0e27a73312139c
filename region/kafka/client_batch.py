"""What a client may send as a record batch: checked at every entrance that takes whole batches.

Rule: nobody but brokers publishes under a producer id of brokers. Those ids, their epochs and sequences stand in the
batches that everybody who reads the topic is sent: whoever could use them would have the next publish of another user
taken for a duplicate of his own.
"""

from __future__ import annotations

from georelay.errors import PolicyViolation
from georelay.ids import is_brokers_own
from georelay.wire.batch import BatchHeader, validate


def check_client_batch(raw: bytes | memoryview, *, is_transactional: bool) -> BatchHeader:
    """Return the header of a batch that a client sent; see georelay.wire.header.validate.

    Args:
        is_transactional: the client named a transactional id with it.

    Raises:
        CorruptRecordBatch, TooLarge: not one well-formed batch. PolicyViolation: the producer id is a broker's.
    """
    header = validate(raw, from_client=True, transactional_ok=is_transactional)
    if is_brokers_own(header.producer_id):
        raise PolicyViolation(
            f"producer id {header.producer_id} is one of the brokers' own, nothing was stored: use InitProducerId"
        )
    return header
