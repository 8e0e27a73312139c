"""Mutate valid frames and record batches against the wire codec: only its own errors may come out, in bounded time.

    python -m tests.fuzz.fuzz_wire --inputs 200000 --seed 1 [--coverage]

Exit code 0: no violation. 1: a violation, printed with the bytes that caused it. 2: too few branches hit.
"""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import coverage

from tests.fuzz.judging import Report, ResidentMemory, Target, flags, verdict

MEASURED = ("api", "codec", "compression", "control_batch", "frames", "header", "hot", "primitives", "records")
INPUT_MS_MAX = 100.0  # processor time; a frame of the corpus is below 4 KiB
MEMORY_FACTOR = 64  # bytes of values for one byte of frame
MEMORY_SLACK_BYTES = 256 * 1024
RSS_GROWTH_MAX_BYTES = 256 * 1024 * 1024
BRANCHES_PERCENT_MIN = 90.0
TRACE_EVERY = 25  # tracing memory is slow: one frame in so many


def random_value(rng: random.Random, row: Any, version: int) -> Any:
    """Return a valid value for a row of a table."""
    from georelay.wire.schema import Kind

    if row.is_nullable(version) and rng.random() < 0.2:
        return None
    if row.kind is Kind.ARRAY:
        return tuple(random_value(rng, row.element, version) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    if row.kind is Kind.STRUCT:
        return random_struct(rng, row.cls, version)
    blob = rng.randbytes(rng.choice((0, 1, 7, 40, 130, 1500)))
    plain: dict[Any, Any] = {
        Kind.BOOL: rng.random() < 0.5,
        Kind.INT8: rng.randrange(-128, 128),
        Kind.INT16: rng.choice((-1, 0, 1, rng.randrange(-(2**15), 2**15))),
        Kind.INT32: rng.choice((-1, 0, 1, rng.randrange(-(2**31), 2**31))),
        Kind.INT64: rng.choice((-1, 0, 1, rng.randrange(-(2**63), 2**63))),
        Kind.FLOAT64: rng.uniform(-1e12, 1e12),
        Kind.UUID: rng.randbytes(16),
        Kind.STRING: "".join(rng.choices("abcé-.☃", k=rng.choice((0, 1, 5, 20, 140)))),
        Kind.BYTES: blob,
        Kind.RECORDS: blob,
        Kind.BUFFERS: (blob,) if blob else (),
    }
    return plain[row.kind]


def random_struct(rng: random.Random, cls: type, version: int) -> Any:
    """Return an instance with random fields; tagged fields are there half of the time."""
    from georelay.wire.schema import fields_of

    values = {}
    for row in fields_of(cls):
        wanted = row.is_in(version) and (row.at.tag < 0 or rng.random() < 0.5)
        values[row.name] = random_value(rng, row, version) if wanted else row.default
    return cls(**values)


def frame_targets(rng: random.Random, per_version: int) -> list[Target]:
    """Return requests and responses of every API and version."""
    from georelay.wire import api
    from georelay.wire.api import CODED, WireError, decode_request, decode_response, encode_request, encode_response

    errors = (WireError,)
    targets: list[Target] = []
    for key, versions in CODED.items():
        for version in versions:
            for _ in range(per_version):
                request = random_struct(rng, api.REQUESTS[key], version)
                client_id = rng.choice((None, "", "fuzz"))
                raw = b"".join(encode_request(request, api_version=version, correlation_id=1, client_id=client_id))
                targets.append(Target(f"{key.name}-{version} request", raw[4:], decode_request, errors))
                response = random_struct(rng, api.RESPONSES[key], version)
                raw = b"".join(encode_response(response, api_version=version, correlation_id=1))

                def read(frame: bytes, key: Any = key, version: int = version) -> object:
                    return decode_response(key, version, frame)

                targets.append(Target(f"{key.name}-{version} response", raw[4:], read, errors))
    return [*targets, *(one_batch_target(rng, size) for size in (1, 100, 3000))]


def one_batch_target(rng: random.Random, size_bytes: int) -> Target:
    """Return what nearly every Produce is: one batch of one topic, in a flexible version."""
    from georelay.wire import requests
    from georelay.wire.api import WireError, decode_request, encode_request

    data = requests.PartitionProduceData(rng.randrange(9), rng.randbytes(size_bytes))
    request = requests.ProduceRequest(None, -1, 30_000, (requests.TopicProduceData("orders", (data,)),))
    raw = b"".join(encode_request(request, api_version=9, correlation_id=1, client_id="fuzz"))
    return Target("Produce of one batch", raw[4:], decode_request, (WireError,))


def stream_target(rng: random.Random) -> Target:
    """Return a connection's bytes, cut into pieces of random size."""
    from georelay.wire.api import ErrorCode, FrameReader, WireError, api_versions_response, encode_response

    def read(stream: bytes) -> object:
        reader, position = FrameReader(lambda _: 2000), 0
        while position < len(stream):
            step = rng.choice((1, 3, 40, 1000))
            reader.feed(stream[position : position + step])
            position += step
            if reader.buffered_bytes > 2000 + 4 + step:
                raise AssertionError(f"{reader.buffered_bytes} bytes are buffered")
        return None

    response = api_versions_response(ErrorCode.NONE)
    raw = b"".join(b"".join(encode_response(response, api_version=v, correlation_id=v)) for v in range(4))
    return Target("stream of frames", raw, read, (WireError,))


def batch_targets(rng: random.Random) -> list[Target]:
    """Return batches of every codec, and a field of several batches."""
    import cramjam
    import zstandard

    from georelay.errors import CorruptRecordBatch, TooLarge
    from georelay.wire.batch import (
        Compression,
        RecordDraft,
        build_batch,
        compress,
        decompress,
        iterate_records,
        split_batches,
        validate,
    )
    from georelay.wire.control_batch import build_marker, parse_marker

    errors = (CorruptRecordBatch, TooLarge)

    def records(count: int) -> list[RecordDraft]:
        headers = [("trace", b"t" * 20), ("none", None)]
        return [
            RecordDraft(
                rng.choice((None, b"", rng.randbytes(5), b"v" * 200)),
                rng.choice((None, b"k")),
                headers if rng.random() < 0.5 else (),
            )
            for _ in range(count)
        ]

    def read(raw: bytes) -> object:
        return list(iterate_records(raw))

    targets: list[Target] = []
    for codec in Compression:
        for count in (1, 3, 80):
            raw = build_batch(records(count), timestamps_ms=list(range(count)), compression=codec)
            targets.append(Target(f"{codec.name} batch", raw, read, errors))
        if codec is not Compression.NONE:
            # The limit is just above what these unfold to, so that it is often the one that stops a mutation.
            small = compress(codec, b"small" * 50)

            def unfold(raw: bytes, codec: Compression = codec) -> object:
                return decompress(codec, raw, 255)

            targets.append(Target(f"{codec.name} batch body", small, unfold, errors))
            targets.append(Target(f"{codec.name} batch body, twice", small + small, unfold, errors))
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"small" * 50)
    targets.append(Target("ZSTD batch body without a size", streamed, unfold, errors))
    marker = build_marker(producer_id=7, producer_epoch=1, is_commit=True, coordinator_epoch=3, timestamp_ms=1)
    targets.append(Target("marker batch", marker, parse_marker, errors))
    sent = build_batch(records(2), timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=0)
    in_transaction = build_batch(
        records(2), timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )

    def judge(raw: bytes) -> object:
        return validate(raw, from_client=True)

    def judge_transactional(raw: bytes) -> object:
        return validate(raw, from_client=True, transactional_ok=True)

    targets.append(Target("batch of a client", sent, judge, errors))
    targets.append(Target("batch of a client's transaction", in_transaction, judge_transactional, errors))
    plain = build_batch(records(5), timestamps_ms=1)
    logged = resealed(plain[:21] + b"\x00\x08" + plain[23:])
    targets.append(Target("log append time batch", logged, read, errors))
    block = bytes(cramjam.snappy.compress_raw(plain[61:]))
    raw_snappy = plain[:21] + b"\x00\x02" + plain[23:61] + block
    targets.append(Target("raw snappy batch", resealed(raw_snappy), read, errors))
    several = b"".join(build_batch(records(2), timestamps_ms=1) for _ in range(3))
    targets.append(Target("batches", several, split_batches, errors))
    targets.append(Target("batches, partial", several, lambda raw: split_batches(raw, partial_tail=True), errors))
    return targets


def resealed(raw: bytes) -> bytes:
    """Return `raw` with length and checksum made right again, so that mutations reach behind them."""
    from georelay.wire.crc import crc32c

    if len(raw) < 61:
        return raw
    return raw[:8] + struct.pack(">i", len(raw) - 12) + raw[12:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:]


HEADER_FIELDS = ((8, "i"), (16, "b"), (21, "h"), (23, "i"), (43, "q"), (51, "h"), (53, "i"), (57, "i"))


def mutate_header(rng: random.Random, raw: bytes) -> bytes:
    """Return a batch with a number put into one of its header's fields."""
    if len(raw) < 61:
        return raw
    position, layout = rng.choice(HEADER_FIELDS)
    number = struct.pack(">" + layout, rng.choice((-2, -1, 0, 1, 2, 5, 8, 16, 32, 64, 127)))
    return raw[:position] + number + raw[position + len(number) :]


INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
COUNTS = tuple(struct.pack(">i", n) for n in (-2, -1, 0, 1, 0x7FFF, 0x7FFFFFFF, -(2**31)))


def mutate(rng: random.Random, raw: bytes, other: bytes) -> bytes:
    """Return `raw` with one to three changes: bits, bytes, counts, cuts, growth, splices."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(8)
        if not data or kind == 0:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[at] = rng.choice(INTERESTING)
        elif kind == 3:
            data[at : at + 4] = rng.choice(COUNTS)
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            del data[at : at + rng.choice((1, 2, 4))]
        elif kind == 6:
            data[at : at + 5] = b"\xff\xff\xff\xff" + bytes([rng.choice((0x07, 0x0F, 0x7F, 0xFF))])
        else:
            cut = rng.randrange(len(other)) if other else 0
            data[at:] = other[cut : cut + 2000]
    return bytes(data)


def memory_max_bytes(target: Target, raw: bytes) -> int | None:
    """Return what a frame may unfold to; batches unfold to what their codec says, up to its own limit."""
    return None if "batch" in target.name else MEMORY_FACTOR * len(raw) + MEMORY_SLACK_BYTES


def run(inputs: int, seed: int) -> list[str]:
    """Feed so many mutated frames; return the violations."""
    rng = random.Random(seed)
    targets = frame_targets(rng, per_version=3)
    # Batches and streams are few but deep: they get about a third of the frames.
    deep = [*batch_targets(rng), stream_target(rng)]
    targets += deep * (len(targets) // len(deep) // 2)
    for target in targets:
        if "twice" not in target.name:  # every other one must be valid to begin with
            target.read(target.valid)
    report = Report(input_ms_max=INPUT_MS_MAX, memory_max_bytes=memory_max_bytes)
    memory = ResidentMemory()
    for number in range(inputs):
        target = targets[rng.randrange(len(targets))]
        raw = mutate(rng, target.valid, targets[rng.randrange(len(targets))].valid)
        if "batch" in target.name and "body" not in target.name:
            raw = mutate_header(rng, raw) if rng.random() < 0.3 else raw
            raw = resealed(raw) if rng.random() < 0.85 else raw
        report.feed(target, raw, trace=number % TRACE_EVERY == 0)
    report.show(f"wire: inputs {inputs}, seed {seed}, targets {len({t.name for t in targets})}", memory)
    return [*report.violations, *memory.violations(RSS_GROWTH_MAX_BYTES)]


def measured_branches(cov: coverage.Coverage) -> float:
    """Print how many branches of the codec were hit, file by file, and return the total in percent."""
    hit = total = 0
    for name in MEASURED:
        numbers = cov._analyze(sys.modules[f"georelay.wire.{name}"].__file__ or "").numbers
        hit += numbers.n_executed_branches
        total += numbers.n_branches
        print(f"  {name + '.py':16} {numbers.n_executed_branches:4} of {numbers.n_branches:4} branches")
    percent = 100.0 * hit / total
    print(f"decoder branches hit: {percent:.1f} % ({hit} of {total})")
    return percent


def main() -> int:
    """Run and judge; see the module text for the exit codes."""
    parser = flags(__doc__)
    parser.add_argument("--coverage", action="store_true", help="measure branches too; needs 90 %% (slower)")
    options = parser.parse_args()
    cov = coverage.Coverage(branch=True, data_file=None, include=["*/georelay/wire/*"]) if options.coverage else None
    if cov is not None:
        cov.start()
    violations = run(options.inputs, options.seed)
    enough = True
    if cov is not None:
        cov.stop()
        enough = measured_branches(cov) >= BRANCHES_PERCENT_MIN
    return verdict(violations) or (0 if enough else 2)


if __name__ == "__main__":
    sys.exit(main())
