"""Every limit of georelay, in one place, with the relations between them asserted at import.

A limit is refused with an error that names it; nothing grows without one.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

# Records
RECORD_BATCH_BYTES_MAX: Final = 8 * MIB  # one batch, header included; one entry of the log
RECORDS_PER_BATCH_MAX: Final = 100_000  # of a batch that a client publishes
RECORDS_PER_STORED_BATCH_MAX: Final = 1_000_000  # what an earlier release let in is read, mirrored and copied
DECOMPRESSED_BATCH_BYTES_MAX: Final = 64 * MIB
HEADERS_PER_RECORD_MAX: Final = 1_000
GZIP_MEMBERS_MAX: Final = 100  # of a compressed batch; clients write one
SNAPPY_BLOCKS_MAX: Final = 65_536  # of a batch in Java's framing, whose blocks are 32 KiB

# Kafka protocol
PRODUCE_FRAME_BYTES_MAX: Final = 32 * MIB
KAFKA_FRAME_BYTES_MAX: Final = 256 * KIB  # every API but Produce
FETCH_RESPONSE_BYTES_MAX: Final = 32 * MIB
KAFKA_REQUESTS_IN_FLIGHT_MAX: Final = 64  # per connection; beyond it the socket is not read
KAFKA_CONNECTIONS_MAX: Final = 5_000

# Names
TOPIC_NAME_CHARS_MAX: Final = 249
REGION_NAME_CHARS_MAX: Final = 20
PARTITIONS_PER_TOPIC_MAX: Final = 1_000
REPLICATION_FACTOR_MAX: Final = 999  # a region keeps as many replicas as it has brokers
TOPICS_MAX: Final = 10_000
REGIONS_MAX: Final = 64

# Security
USERS_MAX: Final = 5_000  # of the mesh; a users file may name more
ACL_ENTRIES_MAX: Final = 20_000  # of all lists together
SECURITY_GRAVES_MAX: Final = 20_000  # deleted users, lists, quotas and bindings that regions must still learn of

# Raft
APPEND_MESSAGE_BYTES_MAX: Final = 1 * MIB  # a single larger entry still travels, alone
INFLIGHT_MESSAGES_MAX: Final = 256
INFLIGHT_BYTES_MAX: Final = 4 * MIB  # plus one message
UNCOMMITTED_BYTES_MAX: Final = 32 * MIB  # per group; beyond it a publish gets a retriable "busy"
PEER_FRAME_BYTES_MAX: Final = 64 * MIB
GROUPS_PER_BROKER_MAX: Final = 20_000

# Log
SEGMENT_BYTES_MAX: Final = 128 * MIB
INDEX_INTERVAL_BYTES: Final = 16 * KIB
TAIL_BYTES_MAX: Final = 8 * MIB  # committed entries kept in memory per group

# Producers
PRODUCER_BATCHES_REMEMBERED: Final = 5  # Kafka clients keep at most 5 batches in flight
PRODUCERS_PER_STREAM_MAX: Final = 10_000

# Links between regions
LINK_FRAME_BYTES_MAX: Final = 16 * MIB
LINK_INFLIGHT_BYTES_MAX: Final = 16 * MIB  # per stream session: sent and not yet acknowledged
LINK_STREAMS_MAX: Final = 20_000
FORWARDS_IN_FLIGHT_MAX: Final = 1_000

# Edge
HTTP_BODY_BYTES_MAX: Final = 16 * MIB
REST_RECORDS_MAX: Final = 10_000  # per request, either way
REST_VALUES_MAX: Final = 100_000  # JSON values in the body of a publish: records, fields, headers
ADMIN_BODY_BYTES_MAX: Final = 512 * KIB  # of a request that does not publish
ADMIN_VALUES_MAX: Final = 20_000
GRPC_FIELDS_MAX: Final = 100_000  # of a message and those inside of it
COALESCE_MS_MAX: Final = 2

assert RECORD_BATCH_BYTES_MAX < PRODUCE_FRAME_BYTES_MAX
assert RECORD_BATCH_BYTES_MAX < LINK_FRAME_BYTES_MAX
assert RECORD_BATCH_BYTES_MAX < PEER_FRAME_BYTES_MAX
assert RECORD_BATCH_BYTES_MAX < UNCOMMITTED_BYTES_MAX
assert RECORD_BATCH_BYTES_MAX < SEGMENT_BYTES_MAX
assert APPEND_MESSAGE_BYTES_MAX < PEER_FRAME_BYTES_MAX
assert RECORD_BATCH_BYTES_MAX < DECOMPRESSED_BATCH_BYTES_MAX
assert RECORDS_PER_BATCH_MAX <= RECORDS_PER_STORED_BATCH_MAX
