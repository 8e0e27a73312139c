"""Mutate conversations of the text protocol: whatever bytes come, answers are whole lines, in bounded time and memory.

    python -m tests.fuzz.fuzz_text --inputs 1000000 --seed 1

One input is what one connection sends, cut into random pieces. Exit code 0: no violation. 1: a violation, printed with
the bytes that caused it.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

from georelay.errors import GeorelayError, Unauthenticated
from georelay.wire.batch import Record
from mesh.listening.line_commands_core import Auth
from mesh.listening.line_core import LineBuffer
from mesh.listening.line_session_core import Action, HangUp, Run, Say, Session, State
from region.text.commands_core import LANGUAGE, LINE_BYTES_MAX, Consumed, Publish, Subscribe
from region.text.record_core import body_text, parse_body
from region.text.subscriptions_core import Subscriptions
from tests.fuzz.judging import Report, ResidentMemory, Target, flags, verdict

INPUT_MS_MAX = 100.0
RSS_GROWTH_MAX_BYTES = 128 * 1024 * 1024
VALID = (
    b"HELP\r\n",
    b"QUIT\r\n",
    b"AUTH alice geheim\r\n",
    b"CRTP orders 12 3\r\n",
    b'PUBS orders {"Header":{"trace":"1","raw":null},"Key":"k","Body":"text \xc3\xa9"}\r\n',
    b'PUBS orders {"KeyB64":"AP8=","BodyB64":"AA==","HeaderB64":{"x":"/w=="}}\r\n',
    b'PUBS orders {"Body":{"deep":[[[[1,2.5e3,"\\u2028"]]]]}}\r\n',
    b"SUBS orders billing 0-3,7\r\n",
    b"SUBS orders -\r\n",
    b"CONS orders 0 41\r\n",
    b"DONE orders 1.0 41\r\n",
    b"SUBS orders billing 3\r\n",
    b'PUBS orders {"Header":"trace 1","Key":"k","Body":"b"}\r\n',
    b"UNSB 1\r\n",
    b"RESOLVE orders\r\n",
    b"\xff\xfd\x03\xff\xfa\x18\x00xterm\xff\xf0HELP\r\0\n",
    b"\r\n\n \t\n",
)
INTERESTING = (
    b"\0",
    b"\n",
    b"\r",
    b"\xff",
    b"\xff\xfa",
    b'"',
    b"{",
    b"[" * 50,
    b" " * 40,
    b"9" * 30,
    b"-1",
    b"\xe2\x80",
)


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """Return `raw` with one to four changes."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at:at] = rng.choice(INTERESTING)
            case 1:
                data[at:at] = rng.randbytes(rng.choice((1, 3, 20)))
            case 2 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                del data[at : at + rng.choice((1, 2, 10))]
            case 4:
                data[at:at] = rng.choice(VALID)
            case _:
                data[at:at] = data[: rng.randrange(200)] * rng.choice((1, 1, 1, 60))
    return bytes(data)


class Conversation:
    """What the connection does with one client's bytes, without a socket and without a region."""

    def __init__(self, rng: random.Random) -> None:
        self.session = Session(
            LANGUAGE, sign_in_needed=rng.random() < 0.4, speaker="region us broker 1001", line_bytes_max=LINE_BYTES_MAX
        )
        self.subscriptions = Subscriptions()
        self.buffer = LineBuffer(self.session.line_bytes_max)
        self.rng = rng
        self.outcomes: Counter[str] = Counter()

    def send(self, raw: bytes) -> None:
        """Feed bytes in pieces; raises AssertionError when a rule is broken."""
        position = 0
        while position < len(raw):
            step = self.rng.choice((1, 2, 7, 100, 5000))
            self.buffer.line_bytes_max = self.session.line_bytes_max
            for line in self.buffer.feed(raw[position : position + step]):
                for action in self.session.line(line):
                    self._judge(action)
            if self.buffer.buffered_bytes > self.buffer.line_bytes_max + 2:
                raise AssertionError(f"{self.buffer.buffered_bytes} bytes are buffered")
            position += step

    def _judge(self, action: Action) -> None:
        match action:
            case Say(text):
                if not text.isprintable() or len(text) > 600:
                    raise AssertionError(f"said {text!r}")
                text.encode()
                self.outcomes[text.partition(" ")[0]] += 1
            case Run(command):
                if self.session.state is State.SIGN_IN and not isinstance(command, Auth):
                    raise AssertionError(f"{command!r} before a sign-in")
                self._run(command)
            case HangUp():
                self.outcomes["hang up"] += 1
                if self.session.state is not State.OVER:
                    raise AssertionError("hung up and not over")

    def _run(self, command: object) -> None:
        self.outcomes[type(command).__name__] += 1
        book = self.subscriptions
        try:
            match command:
                case Auth():
                    is_right = self.rng.random() < 0.5
                    session = self.session
                    actions = (
                        session.signed_in(command.user) if is_right else session.not_signed_in(Unauthenticated("no"))
                    )
                    for action in actions:
                        self._judge(action)
                case Publish():
                    draft = parse_body(command.body)
                    shown = body_text(Record(0, 0, draft.key, draft.value, tuple(draft.headers)))
                    if "\n" in shown or parse_body(shown) != draft:
                        raise AssertionError(f"{shown!r} is not {draft!r}")
                case Subscribe():
                    made = book.open(command.topic, command.group)
                    book.check_room(made, len(command.partitions))
                    made.next_offsets.update(dict.fromkeys(command.partitions, 5))
                case Consumed():
                    book.consumed(command.topic, command.subscription, command.partition, command.offset)
                case _:
                    pass
        except GeorelayError as error:
            self.outcomes[error.code] += 1


def run(inputs: int, seed: int) -> list[str]:
    """Feed so many inputs; return the violations."""
    rng = random.Random(seed)
    report = Report(input_ms_max=INPUT_MS_MAX)
    memory = ResidentMemory()
    for _ in range(inputs):
        raw = mutate(rng, b"".join(rng.choices(VALID, k=rng.choice((1, 2, 5)))))
        conversation = Conversation(rng)
        report.feed(Target("conversation", raw, conversation.send, ()), raw)
        report.outcomes += conversation.outcomes
    report.show(f"text: inputs {inputs}, seed {seed}", memory)
    return [*report.violations, *memory.violations(RSS_GROWTH_MAX_BYTES)]


def main() -> int:
    """Run and judge; see the module text for the exit codes."""
    options = flags(__doc__, each="connections").parse_args()
    return verdict(run(options.inputs, options.seed))


if __name__ == "__main__":
    sys.exit(main())
