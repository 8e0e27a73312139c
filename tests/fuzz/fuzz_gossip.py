"""Mutate valid packets and blobs of gossip against every decoder and against a living memberlist.

    python -m tests.fuzz.fuzz_gossip --inputs 200000 --seed 1

Only the documented errors may come out, in bounded time and memory; the memberlist must stay itself: alive, within its
bounds, with a state that others can read. Exit code 0: no violation. 1: a violation, printed with its bytes.
"""

from __future__ import annotations

import random
import sys

from mesh.gossip import codec as c
from mesh.gossip import lzw
from mesh.gossip.compound import UNFOLDED_BYTES_MAX, flatten, make_compound
from mesh.gossip.coordinate_core import Coordinate
from mesh.gossip.delegate import SilentDelegate
from mesh.gossip.dialect import pack
from mesh.gossip.faults import CodecError, GossipFault, PacketError
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import OUR_VERSIONS, MemberState
from mesh.gossip.memberlist_core import Memberlist
from mesh.gossip.packet import open_packet, seal_packet, seal_stream
from mesh.gossip.roster_core import MEMBERS_MAX
from mesh.gossip.stream_reader import StreamReader
from mesh.gossip.timing import LAN
from tests.fuzz.judging import Report, ResidentMemory, Target, flags, verdict

INPUT_MS_MAX = 150.0  # processor time; the slowest are compressions that unfold to their cap
MEMORY_MAX_BYTES = 8 * UNFOLDED_BYTES_MAX + 512 * 1024
RSS_GROWTH_MAX_BYTES = 128 * 1024 * 1024
EFFECTS_MAX = 1200
TRACE_EVERY = 25
RING = Keyring([b"k" * 32, b"o" * 16])
INTERESTING = (0, 1, 2, 7, 9, 0x0A, 0x0C, 0x7F, 0x80, 0x8F, 0x9F, 0xA0, 0xC0, 0xC1, 0xD9, 0xDB, 0xDD, 0xDF, 0xF4, 0xFF)
LENGTHS = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdc\xff\xff",
    b"\xca\x7f\x80\0\0",
)


def messages(rng: random.Random) -> list[bytes]:
    """Return every message that is a single struct."""
    here, name = ("10.0.0.1", 7946), f"m{rng.randrange(40)}"
    return [
        c.encode(message)
        for message in (
            c.Ping(seq_no=rng.randrange(2**32), name="me", source=here, source_name=name),
            c.IndirectPing(seq_no=7, target=here, name=name, wants_nack=True, source=here, source_name="me"),
            c.Ack(seq_no=rng.randrange(2**32), payload=c.encode_coordinate(Coordinate.origin())),
            c.Nack(seq_no=3),
            c.Suspect(incarnation=rng.randrange(200), name=rng.choice((name, "me")), accuser="eve"),
            c.Dead(incarnation=rng.randrange(200), name=rng.choice((name, "me")), accuser=rng.choice((name, "eve"))),
            c.Alive(
                incarnation=rng.randrange(200),
                name=name,
                address=("10.0.0.1", 1 + rng.randrange(9)),
                meta=rng.randbytes(30),
                versions=OUR_VERSIONS,
            ),
            c.ErrorReply(text="no"),
        )
    ]


def state(rng: random.Random) -> bytes:
    """Return a push/pull state."""
    rows = tuple(
        c.MemberRow(
            name=rng.choice((f"m{number}", "me")),
            address=("10.0.0.2", 1 + number),
            meta=rng.randbytes(20),
            incarnation=rng.randrange(300),
            state=rng.choice(list(MemberState)),
            versions=OUR_VERSIONS,
        )
        for number in range(rng.choice((0, 1, 6)))
    )
    return c.encode_push_pull(c.PushPull(is_join=rng.random() < 0.5, rows=rows, user_state=rng.randbytes(9)))


class Living:
    """A memberlist that everything is fed to."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 1000.0
        self.rng = rng
        self.list = Memberlist(
            name="me",
            address=("10.0.0.100", 7946),
            meta=b"tags",
            timing=LAN,
            rng=rng,
            incarnation=100,
            delegate=SilentDelegate(),
        )
        self.list.start(self.now)

    def packet(self, raw: bytes) -> None:
        """Read a packet, let some time pass, and look whether all is well."""
        self.list.packet_received(raw, ("10.0.0.1", 1), self.now)
        self._go_on()

    def request(self, raw: bytes) -> None:
        """Serve a TCP request."""
        self.list.stream_received(raw, self.now)
        self._go_on()

    def reply(self, raw: bytes) -> None:
        """Take the reply to a state exchange."""
        self.list.merge_stream_state(raw, self.now)
        self._go_on()

    def _go_on(self) -> None:
        self.now += self.rng.choice((0.0, 0.01, 0.3))
        while self.list.next_due() <= self.now:
            self.list.tick(self.now)
        effects = self.list.take()
        assert len(effects) <= EFFECTS_MAX, len(effects)
        own = self.list.local
        assert (own.name, own.address, own.meta, own.state) == ("me", ("10.0.0.100", 7946), b"tags", MemberState.ALIVE)
        assert self.list.member_count <= MEMBERS_MAX
        assert c.decode_push_pull(self.list.stream_state(join=False)).bad_rows == 0


def targets_of(rng: random.Random) -> list[Target]:
    """Return everything that reads bytes of strangers."""
    living, codec_errors, packet_errors = Living(rng), (CodecError,), (PacketError,)
    found: list[Target] = []
    for _ in range(3):
        single = messages(rng)
        compound = make_compound([*single, c.user_message(b"\x03\x80")])
        folded = c.encode(c.Compress(buffer=lzw.compress(compound)))
        blob = state(rng)
        found += [Target("message", raw, c.decode, codec_errors) for raw in single]
        found += [Target("packet to a member", raw, living.packet, ()) for raw in (*single, compound, folded)]
        found += [
            Target("compound", compound, flatten, codec_errors),
            Target("compression", folded, flatten, codec_errors),
            Target("state", blob, c.decode_push_pull, codec_errors),
            Target("request to a member", blob, living.request, (GossipFault,)),
            Target("reply to a member", blob, living.reply, (GossipFault,)),
            Target("user request to a member", c.stream_user_message(b"\x03\x80"), living.request, (GossipFault,)),
            Target("coordinate", c.encode_coordinate(Coordinate.origin()), c.decode_coordinate, codec_errors),
            Target("lzw", lzw.compress(compound), lambda raw: lzw.decompress(raw, limit_bytes=65536), codec_errors),
        ]
        for ring, label in ((None, ""), (RING, ""), (None, "mesh"), (RING, "mesh")):
            kind = f"{'sealed' if ring else 'plain'}{' labelled' if label else ''}"
            sealed = seal_packet(compound, keyring=ring, label=label, with_crc=rng.random() < 0.5)

            def opened(raw: bytes, ring: Keyring | None = ring, label: str = label) -> object:
                return open_packet(raw, keyring=ring, label=label)

            def collected(raw: bytes, ring: Keyring | None = ring, label: str = label) -> object:
                return collect(rng, raw, ring, label)

            stream = seal_stream(
                blob, keyring=ring, label=label, is_reply=False, compress_from_bytes=rng.choice((1, 9999))
            )
            found.append(Target(f"{kind} packet", sealed, opened, packet_errors))
            found.append(Target(f"{kind} connection", stream, collected, packet_errors))
    return found


def collect(rng: random.Random, raw: bytes, ring: Keyring | None, label: str) -> bytes | None:
    """Read a connection in pieces of random size."""
    reader, at, found = StreamReader(keyring=ring, label=label, is_reply=False, limit_bytes=60_000), 0, None
    while at < len(raw) and found is None:
        step = rng.choice((1, 3, 40, 1000))
        found = reader.feed(raw[at : at + step])
        at += step
    return found


def mutate(rng: random.Random, raw: bytes, other: bytes) -> bytes:
    """Return `raw` with one to three changes: bits, bytes, announced lengths, cuts, growth, splices, nests."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(9)
        if not data or kind == 0:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[at] = rng.choice(INTERESTING)
        elif kind == 3:
            data[at:at] = rng.choice(LENGTHS)
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            del data[at : at + rng.choice((1, 2, 4))]
        elif kind == 6:
            data[at:] = other[rng.randrange(len(other)) :][:2000] if other else b""
        elif kind == 7:
            data[at:at] = rng.choice((b"\x91", b"\x81\xa1a", b"\xdc\xff\xff")) * rng.choice((3, 300))
        else:
            data = bytearray(c.encode(c.Compress(buffer=lzw.compress(bytes(data[:3000])))))
    return bytes(data[:60_000])


def run(inputs: int, seed: int) -> list[str]:
    """Feed so many mutated inputs; return the violations."""
    rng = random.Random(seed)
    targets = targets_of(rng)
    targets.append(Target("bomb", c.encode(c.Compress(buffer=lzw.compress(b"\x08" * 60_000))), flatten, (CodecError,)))
    targets.append(Target("nest", b"\x00" + pack({"a": 1}) + b"\x91" * 1000, c.decode, (CodecError,)))
    report = Report(input_ms_max=INPUT_MS_MAX, memory_max_bytes=lambda _target, _raw: MEMORY_MAX_BYTES)
    memory = ResidentMemory()
    for number in range(inputs):
        target = targets[rng.randrange(len(targets))]
        raw = mutate(rng, target.valid, targets[rng.randrange(len(targets))].valid)
        report.feed(target, raw, trace=number % TRACE_EVERY == 0)
    report.show(f"gossip: inputs {inputs}, seed {seed}, targets {len({t.name for t in targets})}", memory)
    return [*report.violations, *memory.violations(RSS_GROWTH_MAX_BYTES)]


def main() -> int:
    """Run and judge; see the module text for the exit codes."""
    options = flags(__doc__).parse_args()
    return verdict(run(options.inputs, options.seed))


if __name__ == "__main__":
    sys.exit(main())
