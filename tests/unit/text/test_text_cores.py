"""The pure parts: lines, commands, records, sessions, subscriptions, shares."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from georelay.durability import Durability
from georelay.errors import BadRequest, Busy, GeorelayError, PolicyViolation, TooLarge, Unauthenticated
from georelay.wire.batch import Record, RecordDraft
from mesh.listening.line_commands_core import Auth, Help, Quit
from mesh.listening.line_core import OVERLONG, Line, LineBuffer
from mesh.listening.line_session_core import (
    LINE_BEFORE_SIGN_IN_BYTES_MAX,
    MISTAKES_IN_A_ROW_MAX,
    SIGN_INS_MAX,
    HangUp,
    Run,
    Say,
    Session,
    State,
    one_line,
    refusal,
)
from mesh.replication.level import AskedLevel
from region.text.assignment_core import assign_ranges, most_of, most_text
from region.text.commands_core import (
    LANGUAGE,
    LINE_BYTES_MAX,
    Consumed,
    CreateTopic,
    Publish,
    Read,
    Resolve,
    Subscribe,
    Unsubscribe,
)
from region.text.record_core import body_text, parse_body
from region.text.subscriptions_core import PARTITIONS_MAX, SUBSCRIPTIONS_MAX, Subscriptions
from tests.tiers import in_one_test


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_lines_come_out_whole_however_the_bytes_are_cut(step: int) -> None:
    stream = b"HELP\r\nCRTP a\n\r\n\nQUIT\r\0\nrest"
    buffer, lines = LineBuffer(100), []
    for start in range(0, len(stream), step):
        lines += buffer.feed(stream[start : start + step])
    assert lines == [b"HELP", b"CRTP a", b"", b"", b"QUIT"]
    assert buffer.buffered_bytes == 4


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_line_over_the_limit_is_reported_once_and_never_held(step: int) -> None:
    buffer, lines = LineBuffer(10), []
    stream = b"x" * 500 + b"\nok\n" + b"y" * 13 + b"\nfine\n"
    for start in range(0, len(stream), step):
        lines += buffer.feed(stream[start : start + step])
        assert buffer.buffered_bytes <= 12
    assert lines == [OVERLONG, b"ok", OVERLONG, b"fine"]


@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_what_telnet_itself_says_is_left_out(step: int) -> None:
    negotiation = b"\xff\xfd\x03\xff\xfb\x18"
    sub = b"\xff\xfa\x18\x00xterm\xff\xff\xff\xf0"
    stream = negotiation + b"HE" + sub + b"LP\r\n" + b"\xff\xf4QUIT\n"
    buffer, lines = LineBuffer(100), []
    for start in range(0, len(stream), step):
        lines += buffer.feed(stream[start : start + step])
    assert lines == [b"HELP", b"QUIT"]


@in_one_test(
    ("line", "command"),
    [
        ("", None),
        ("  \t ", None),
        ("AUTH alice two words", Auth("alice", "two words")),
        ("CRTP orders", CreateTopic("orders", -1)),
        ("crtp  orders\t12", CreateTopic("orders", 12)),
        ('PUBS orders {"Body": "a  b"}', Publish("orders", '{"Body": "a  b"}')),
        ("PUBS orders region {}", Publish("orders", "{}", AskedLevel())),
        ("PUBS orders geo:2 {}", Publish("orders", "{}", AskedLevel(durability=Durability.geo(2)))),
        (
            'pubs orders GEO:Majority  within\t500MS {"Body": " geo:3 within 1s"}',
            Publish(
                "orders",
                '{"Body": " geo:3 within 1s"}',
                AskedLevel(durability=Durability.MAJORITY, deadline_ms=500),
            ),
        ),
        (
            "PUBS orders geo:all within 300s {}",
            Publish("orders", "{}", AskedLevel(durability=Durability.ALL, deadline_ms=300_000)),
        ),
        ("PUBS orders regional", Publish("orders", "regional")),
        ("SUBS orders billing", Subscribe("orders", "billing", ())),
        ("SUBS orders - 0,5-7,6", Subscribe("orders", "-", (0, 5, 6, 7))),
        ("CRTP orders 3 2", CreateTopic("orders", 3, 2)),
        ("SUBS orders billing 3", Subscribe("orders", "billing", (), 3)),
        ("SUBS orders billing 3-3", Subscribe("orders", "billing", (3,))),
        ("CONS orders 42", Read("orders", -1, 42)),
        ("CONS orders 3 42", Read("orders", 3, 42)),
        ("DONE orders 3 42", Consumed("orders", 3, -1, 42)),
        ("DONE orders 3.11 42", Consumed("orders", 3, 11, 42)),
        ("UNSB 3", Unsubscribe(3)),
        ("RESOLVE", Resolve("")),
        ("resolve orders", Resolve("orders")),
        ("HELP me", Help()),
        ("Quit", Quit()),
    ],
)
def test_a_line_is_read_as_its_command(line: str, command: Any) -> None:
    assert LANGUAGE.parse(line.encode()) == command


@in_one_test(
    ("line", "says"),
    [
        (b"NOPE", "HELP shows the commands"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"CRTP", "CRTP topic [partitions [replication]]"),
        (b"CRTP a 1 2 3", "CRTP topic [partitions [replication]]"),
        (b"CRTP a 1 0", "replication '0': must be a number in 1..999"),
        (b"CRTP a many", "must be a number"),
        (b"CRTP a -1", "must be a number"),
        (b"PUBS a", "PUBS topic [geo:2 [within 500ms]]"),
        (b"PUBS a geo:2", "PUBS topic [geo:2 [within 500ms]]"),
        (b"PUBS a geo:2 within {}", "PUBS topic [geo:2 [within 500ms]]"),
        (b"PUBS a within 500ms {}", "PUBS topic [geo:2 [within 500ms]]"),
        (b"PUBS a geo:1 {}", "regions must be in 2..64"),
        (b"PUBS a geo:some {}", "use region, geo:2"),
        (b"PUBS a region within 1s {}", "within goes with geo:2"),
        (b"PUBS a geo:2 within soon {}", "use 1ms..300s"),
        (b"PUBS a geo:2 within 0ms {}", "use 1ms..300s"),
        (b"PUBS a geo:2 within 301s {}", "use 1ms..300s"),
        (b"SUBS a", "SUBS topic group"),
        (b"SUBS a b 5-3", "first is above the last"),
        (b"SUBS a b 1,,2", "must be a number"),
        (b"SUBS a b 99999", "count of partitions '99999': must be a number in 1..1000"),
        (b"SUBS a b 0", "must be a number in 1..1000"),
        (b"SUBS a b 1-99999", "0..999"),
        (b"SUBS a " + b"g" * 256, "over 255"),
        (b"CONS a", "CONS topic [partition] offset"),
        (b"CONS a x 1", "partition 'x': must be a number"),
        (b"CONS a 1.0 41", "that records are done says DONE a 1.0 41"),
        (b"CONS a 1 9223372036854775807", "must be a number"),
        (b"DONE a 1", "DONE topic subscription offset"),
        (b"DONE a x 1", "take it from a REC line"),
        (b"DONE a 1 9223372036854775807", "must be a number"),
        ("DONE a 1 \u0661".encode(), "must be a number"),
        (b"UNSB", "UNSB subscription"),
        (b"RESOLVE a b", "RESOLVE [topic]"),
        (b"QUIT now", "QUIT"),
        (b"AUTH alice", "AUTH user password"),
    ],
)
def test_a_line_that_is_no_command_says_how_it_is_written(line: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        LANGUAGE.parse(line)
    assert says in str(refused.value)


def test_a_password_is_never_shown() -> None:
    assert "geheim" not in repr(Auth("alice", "geheim"))


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ("{}", RecordDraft(None)),
        ('{"Header":{"h":"x","n":null},"Key":"k"}', RecordDraft(None, b"k", (("h", b"x"), ("n", None)))),
        ('{"Key":"","Body":""}', RecordDraft(b"", b"")),
        ('{"Key":null,"Body":null,"Header":null}', RecordDraft(None)),
        ('{"Body":{"a":[1,2.5,"\u00e9"]}}', RecordDraft('{"a":[1,2.5,"\u00e9"]}'.encode())),
        ('{"Body":12}', RecordDraft(b"12")),
        ('{"KeyB64":"AP8=","BodyB64":"/w=="}', RecordDraft(b"\xff", b"\x00\xff")),
        ('{"HeaderB64":{"b":"AA=="}}', RecordDraft(None, None, (("b", b"\x00"),))),
    ],
)
def test_json_is_read_as_a_record(text: str, draft: RecordDraft) -> None:
    assert parse_body(text) == draft


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nope", "not JSON"),
        ('{"Body":NaN}', "NaN"),
        ("[1]", "an object"),
        ('{"body":"x"}', "'body': unknown field"),
        ('{"Body":"x","Body":"y"}', "stands twice"),
        ('{"Key":1}', "Key: must be a string"),
        ('{"Key":"\\ud800"}', "surrogate"),
        ('{"Header":[]  , "Header2":1}', "Header2"),
        ('{"Header":[1]}', "Header: must be a text, or an object of texts"),
        ('{"Header":{"a":1}}', "Header.a: must be a string"),
        ('{"BodyB64":"x"}', "not base64"),
        ('{"BodyB64":1}', "string of base64"),
        ('{"Body":"x","BodyB64":"AA=="}', "not both"),
        ("[" * 100_000, "not JSON"),
        ('{"Body":' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_json_that_is_no_record_names_the_field(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_body(text)
    assert says in str(refused.value)


def test_too_many_headers_are_too_large() -> None:
    with pytest.raises(TooLarge):
        parse_body(json.dumps({"Header": {str(number): "" for number in range(20_000)}}))


@pytest.mark.parametrize(
    "draft",
    [
        RecordDraft(None),
        RecordDraft(b"line\nbreak\r\0\xe2\x80\xa8", b"k"),
        RecordDraft(b"\xff\xfe", b"\x80", (("text", b"x"), ("none", None), ("raw", b"\xff"))),
    ],
)
def test_a_record_is_shown_on_one_line_and_reads_back_the_same(draft: RecordDraft) -> None:
    text = body_text(Record(7, 0, draft.key, draft.value, tuple(draft.headers)))
    assert "\n" not in text and "\r" not in text
    assert parse_body(text) == draft


# --- sessions ----------------------------------------------------------------------------------------


def session(*, sign_in_needed: bool = False) -> Session:
    return Session(
        LANGUAGE, sign_in_needed=sign_in_needed, speaker="region us broker 1001", line_bytes_max=LINE_BYTES_MAX
    )


def test_help_shows_every_command_and_ends_with_ok() -> None:
    *lines, last = session().line(b"help")
    assert last == Say("OK")
    shown = [action.text.split()[1] for action in lines if isinstance(action, Say)]
    assert shown == ["AUTH", "CRTP", "PUBS", "SUBS", "CONS", "DONE", "UNSB", "RESOLVE", "HELP", "QUIT"]


def test_a_command_is_run_and_an_empty_line_is_nothing() -> None:
    ready = session()
    assert ready.line(b"CRTP a") == [Run(CreateTopic("a", -1))]
    assert ready.line(b"  ") == ()


@pytest.mark.parametrize(
    ("first", "sign_in_needed"),
    [
        (b"POST / HTTP/1.1", False),
        (b"GET /%0aDLTP HTTP/1.0", True),
        (b"OPTIONS * HTTP/1.1", False),
        (OVERLONG, False),  # an address may be of any length
    ],
)
def test_a_page_that_lets_a_browser_send_commands_in_a_request_of_http_is_hung_up_on(
    first: Line, sign_in_needed: bool
) -> None:
    ready = session(sign_in_needed=sign_in_needed)
    answer, end = ready.line(first)
    assert isinstance(answer, Say) and answer.text.startswith("ERR BAD_REQUEST") and isinstance(end, HangUp)
    assert ready.line(b"DLTP orders") == ()


def test_a_record_may_look_like_a_request_of_http() -> None:
    ready = session()
    for line in (b"PUBS orders HTTP/1.1", b"POST / HTTP/1.1", b"PUBS orders x"):
        (action,) = ready.line(line)
        assert isinstance(action, Run) is line.startswith(b"PUBS")


def test_quit_says_goodbye_and_ends() -> None:
    ready = session()
    assert ready.line(b"QUIT") == [Say("OK bye"), HangUp()]
    assert ready.state is State.OVER
    assert ready.line(b"HELP") == ()


@pytest.mark.parametrize(
    "line", [b"CRTP a", b"PUBS a {}", b"SUBS a b", b"CONS a 1 1", b"DONE a 1 1", b"UNSB 1", b"RESOLVE"]
)
def test_before_a_sign_in_nothing_is_run(line: bytes) -> None:
    (answer,) = session(sign_in_needed=True).line(line)
    assert answer == Say("ERR UNAUTHENTICATED sign in first: AUTH user password")


def test_a_sign_in_opens_the_session_and_longer_lines() -> None:
    waiting = session(sign_in_needed=True)
    assert "AUTH" in waiting.greeting().text
    assert waiting.line_bytes_max == LINE_BEFORE_SIGN_IN_BYTES_MAX
    assert waiting.line(b"AUTH alice pw") == [Run(Auth("alice", "pw"))]
    assert waiting.signed_in("alice") == [Say("OK signed in as alice")]
    assert waiting.line_bytes_max == LINE_BYTES_MAX
    assert waiting.line(b"RESOLVE") == [Run(Resolve(""))]
    (answer,) = waiting.line(b"AUTH alice pw")
    assert isinstance(answer, Say) and answer.text.startswith("ERR BAD_REQUEST")


def test_wrong_sign_ins_end_the_session_and_a_busy_broker_does_not() -> None:
    waiting = session(sign_in_needed=True)
    for _ in range(10):
        assert waiting.not_signed_in(Busy("later")) == [Say("ERR BUSY later")]
    for _ in range(SIGN_INS_MAX - 1):
        assert waiting.not_signed_in(Unauthenticated("wrong")) == [Say("ERR UNAUTHENTICATED wrong")]
    assert waiting.not_signed_in(Unauthenticated("wrong"))[-1] == HangUp()
    assert waiting.state is State.OVER


def test_many_mistakes_in_a_row_end_the_session_and_a_right_line_forgives() -> None:
    ready = session()
    for _ in range(3):
        for _ in range(MISTAKES_IN_A_ROW_MAX - 1):
            (answer,) = ready.line(b"nonsense")
            assert isinstance(answer, Say) and answer.text.startswith("ERR BAD_REQUEST unknown command 'nonsense'")
        ready.line(b"HELP")
    for _ in range(MISTAKES_IN_A_ROW_MAX - 1):
        ready.line(OVERLONG)
    assert ready.line(OVERLONG)[-1] == HangUp()


@pytest.mark.parametrize(
    "error",
    [BadRequest("a\r\nOK forged"), BadRequest("\x1b[2J\u2028\x85"), BadRequest("x" * 10_000), BadRequest("\ud800")],
)
def test_an_answer_is_one_printable_line_whatever_was_asked(error: GeorelayError) -> None:
    text = refusal(error).text
    assert len(text) <= 600
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    text.encode()


def test_ordinary_text_is_said_as_it_is() -> None:
    assert one_line("OK \u00e9t\u00e9 \u2603") == "OK \u00e9t\u00e9 \u2603"


# --- subscriptions -----------------------------------------------------------------------------------


def test_what_was_delivered_can_be_consumed_and_nothing_else() -> None:
    book = Subscriptions()
    orders = book.open("orders", "billing")
    orders.next_offsets.update({0: 5, 1: 9})
    assert book.consumed("orders", 1, 1, 8)[1:] == (1, 9)
    for topic, number, partition, offset in [
        ("other", 1, 1, 8),  # of another topic
        ("orders", 2, 1, 8),  # no such subscription
        ("orders", 1, -1, 3),  # which partition?
        ("orders", 1, 2, 0),  # not delivered here
        ("orders", 1, 0, 5),  # not delivered yet
    ]:
        with pytest.raises(BadRequest):
            book.consumed(topic, number, partition, offset)
    del orders.next_offsets[1]
    assert book.consumed("orders", 1, -1, 4)[1:] == (0, 5)


def test_numbers_of_subscriptions_never_come_back() -> None:
    book = Subscriptions()
    first = book.open("a", "")
    book.close(first.number)
    assert book.open("a", "").number == first.number + 1
    with pytest.raises(BadRequest):
        book.get(first.number)


def test_subscriptions_and_partitions_of_a_connection_are_bounded() -> None:
    book = Subscriptions()
    for _ in range(SUBSCRIPTIONS_MAX):
        made = book.open("a", "")
    with pytest.raises(Busy):
        book.open("a", "")
    next(iter(book)).next_offsets.update(dict.fromkeys(range(PARTITIONS_MAX), 0))
    with pytest.raises(Busy):
        book.check_room(made, 1)


# --- shares ------------------------------------------------------------------------------------------


def test_ranges_are_those_of_kafkas_assignor() -> None:
    shares = assign_ranges({"m2": ["a", "b"], "m1": ["a", "b"], "m3": ["b"]}, {"a": 3, "b": 4}.__getitem__)
    assert shares == {
        "m1": {"a": (0, 1), "b": (0, 1)},
        "m2": {"a": (2,), "b": (2,)},
        "m3": {"b": (3,)},
    }


@in_one_test("members", [1, 2, 3, 5, 8])
@in_one_test("partitions", [0, 1, 3, 12])
def test_every_partition_goes_to_one_member_and_shares_differ_by_one(members: int, partitions: int) -> None:
    shares = assign_ranges({f"m{n}": ["t"] for n in range(members)}, lambda _: partitions)
    given = [shares[member].get("t", ()) for member in sorted(shares)]
    assert sorted(number for share in given for number in share) == list(range(partitions))
    assert max(map(len, given)) - min(map(len, given)) <= 1


@pytest.mark.parametrize(
    ("most", "shares"),
    [
        ({"m1": 3}, [(0, 1, 2), (3, 4, 5)]),
        ({"m1": 1}, [(0,), (1, 2, 3, 4, 5)]),
        ({"m1": 2, "m2": 2}, [(0, 1), (2, 3)]),  # nobody has room for two of them
        ({"m1": 9, "m2": 1}, [(0, 1, 2, 3, 4), (5,)]),
    ],
)
def test_who_takes_so_many_at_most_leaves_the_rest_to_the_others(
    most: dict[str, int], shares: list[tuple[int, ...]]
) -> None:
    given = assign_ranges({"m1": ["t"], "m2": ["t"]}, lambda _: 6, most)
    assert [given[member].get("t", ()) for member in ("m1", "m2")] == shares


def test_a_limit_holds_for_all_topics_together() -> None:
    given = assign_ranges({"m1": ["a", "b"], "m2": ["a", "b"]}, lambda _: 4, {"m1": 3})
    assert given == {"m1": {"a": (0, 1), "b": (0,)}, "m2": {"a": (2, 3), "b": (1, 2, 3)}}


def test_a_members_limit_is_read_back_and_user_data_of_others_is_none() -> None:
    assert most_of(most_text(3)) == 3
    assert most_text(0) is None
    assert [most_of(raw) for raw in (None, b"", b"\0\1stream", b"georelay.most=x")] == [None] * 4


def test_a_header_that_is_one_text_is_shown_as_it_came() -> None:
    text = '{"Header":"trace 42","Key":"k","Body":"b"}'
    draft = parse_body(text)
    assert draft.headers == (("", b"trace 42"),)
    assert body_text(Record(7, 0, draft.key, draft.value, tuple(draft.headers))) == text
    more = Record(7, 0, None, b"b", (("", b"a"), ("h", b"c")))
    assert body_text(more) == '{"Header":{"":"a","h":"c"},"Key":null,"Body":"b"}'


def test_a_refusal_has_the_code_of_its_error() -> None:
    assert refusal(PolicyViolation("no")) == Say("ERR POLICY_VIOLATION no")


def test_a_field_that_stands_twice_is_found_among_many_at_once() -> None:
    fields = ",".join(f'"{number:x}":0' for number in range(20_000))
    began_s = time.process_time()
    with pytest.raises(BadRequest, match="stands twice"):
        parse_body(f'{{{fields},"x":0,"x":0}}')
    assert time.process_time() - began_s < 1
