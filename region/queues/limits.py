"""Limits of queues. What is refused names the one that it would break."""

from __future__ import annotations

from typing import Final

from georelay.limits import KIB, MIB, RECORD_BATCH_BYTES_MAX
from region.coordination.limits import PART_SNAPSHOT_BYTES_MAX

QUEUES_PER_COORDINATOR_MAX: Final = 1_000
QUEUE_NAME_CHARS_MAX: Final = 200
CONSUMER_CHARS_MAX: Final = 255
CONSUMERS_PER_QUEUE_MAX: Final = 1_000
WAITING_RECEIVES_PER_QUEUE_MAX: Final = 2_000

RECEIVE_RECORDS_MAX: Final = 1_000  # of one receive
RECEIVE_BYTES_MAX: Final = 1 * MIB  # of one receive; the first record is given whatever its size
RECEIVE_WAIT_MS_MAX: Final = 30_000
LEASES_PER_REQUEST_MAX: Final = 1_000
RECORD_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX  # larger ones (out of a compressed batch) cannot be handed out

VISIBILITY_TIMEOUT_MS_MIN: Final = 100
VISIBILITY_TIMEOUT_MS_MAX: Final = 12 * 60 * 60 * 1000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 300_000
DELAY_MS_MAX: Final = 7 * 24 * 60 * 60 * 1000
TTL_MS_MAX: Final = 365 * 24 * 60 * 60 * 1000
MAX_DELIVERIES_MAX: Final = 10_000
REASON_CHARS_MAX: Final = 200

# Records that were read from a partition and are not done. When there are so many, no more is read.
OPEN_PER_PARTITION_MAX: Final = 10_000
OPEN_PER_QUEUE_MAX: Final = 50_000
TAKEN_IN_PER_TURN_MAX: Final = 250  # records, of all queues of a broker: between two turns everybody else has one
# Records of one coordinator that were handed out at least once and are not done: each is a row of the replicated state
# (about 60 bytes). When there are so many, only those are handed out that have a row already.
ROWS_PER_COORDINATOR_MAX: Final = 100_000
TEXT_BYTES_MAX: Final = 4 * MIB  # of the names of consumers and the reasons of rejects that these rows keep
CACHED_BYTES_PER_QUEUE_MAX: Final = 8 * MIB  # contents of records that wait for their first delivery
READ_BYTES: Final = 256 * KIB
READ_WAIT_MS: Final = 10_000
ROWS_PER_COMMAND_MAX: Final = 1_000

DEAD_LETTERS_IN_FLIGHT_MAX: Final = 5  # a stream recognises the last 5 batches of a producer

assert ROWS_PER_COORDINATOR_MAX * 80 + TEXT_BYTES_MAX < PART_SNAPSHOT_BYTES_MAX
assert RECEIVE_BYTES_MAX < RECORD_BYTES_MAX
assert OPEN_PER_PARTITION_MAX <= OPEN_PER_QUEUE_MAX <= ROWS_PER_COORDINATOR_MAX
