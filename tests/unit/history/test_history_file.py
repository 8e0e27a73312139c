"""What is recorded is what is read, and a file that is not a history says where and why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.history import __main__ as command
from loadtest.history import history_file
from loadtest.history.history_file import HistoryWriter, read_history
from loadtest.history.operation import HistoryError, Kind, Outcome

HEAD = '{"format":"georelay-history","version":1}\n'
HEAD_WITH_CLOCK = '{"format":"georelay-history","version":1,"wall_ahead_ns":1000000000,"boot":""}\n'
BEGUN = '{"e":"invoke","p":"a","n":0,"t":5,"op":"produce","key":"k","value":"v"}\n'
ENDED = '{"e":"ok","p":"a","n":0,"t":9,"offset":3}\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "h.ndjson"
    path.write_text(text)
    return path


def test_what_was_recorded_is_read(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    writer = HistoryWriter(path, "a")
    writer.produced(writer.invoke(Kind.PRODUCE, "k/0", value="v"), 7)
    writer.failed(writer.invoke(Kind.PRODUCE, "k/0", value="w"), "too large")
    writer.unknown(writer.invoke(Kind.PRODUCE, "k/0", value="x"), "timed out")
    writer.fetched(writer.invoke(Kind.FETCH, "k/0", site="us", position=0, final=True), [(7, "v")])
    writer.produced(writer.invoke(Kind.END, "k/0", linear=True), 8)
    writer.invoke(Kind.START, "k/0")
    writer.close()
    rows = read_history([path])
    assert [(row.kind, row.outcome, row.offset, row.value, row.note) for row in rows] == [
        (Kind.PRODUCE, Outcome.OK, 7, "v", ""),
        (Kind.PRODUCE, Outcome.FAIL, None, "w", "too large"),
        (Kind.PRODUCE, Outcome.UNKNOWN, None, "x", "timed out"),
        (Kind.FETCH, Outcome.OK, None, None, ""),
        (Kind.END, Outcome.OK, 8, None, ""),
        (Kind.START, Outcome.UNKNOWN, None, None, ""),
    ]
    fetch = rows[3]
    assert (fetch.site, fetch.position, fetch.final, fetch.records) == ("us", 0, True, ((7, "v"),))
    assert rows[4].linear
    assert all(row.process == "a" for row in rows)
    assert [row.number for row in rows] == list(range(6))


def test_several_files_are_one_history_in_the_order_of_time(tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    one.write_text(HEAD + BEGUN.replace('"t":5', '"t":50'))
    other.write_text(HEAD + BEGUN.replace('"p":"a"', '"p":"b"'))
    assert [row.process for row in read_history([one, other])] == ["b", "a"]


def test_the_golden_lines_of_version_1_are_read(tmp_path: Path) -> None:
    (row,) = read_history([written(tmp_path, HEAD + BEGUN + ENDED)])
    assert (row.invoked_ns, row.completed_ns, row.offset, row.value) == (5, 9, 3, "v")


def test_a_new_file_says_how_far_the_wall_clock_is_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time_ns=lambda: 1_000_000_007, monotonic_ns=lambda: 7)
    monkeypatch.setattr(history_file, "time", clock)
    monkeypatch.setattr(history_file, "_boot", lambda: "")
    HistoryWriter(tmp_path / "h.ndjson", "a").close()
    assert (tmp_path / "h.ndjson").read_text() == HEAD_WITH_CLOCK


def on_hosts(tmp_path: Path, *ahead_ns: int | None) -> list[tuple[int, int | None]]:
    """Return the times of one operation in each of so many files, which was at 5 and 9 by their own clocks."""
    paths = []
    for number, each in enumerate(ahead_ns):
        head = HEAD if each is None else HEAD_WITH_CLOCK.replace("1000000000", str(each))
        paths.append(tmp_path / f"{number}.history")
        ended = "" if number == 1 else ENDED
        paths[-1].write_text("".join([head, BEGUN, ended]).replace('"p":"a"', f'"p":"{number}"'))
    found = {row.process: (row.invoked_ns, row.completed_ns) for row in read_history(paths)}
    return [found[str(number)] for number in range(len(ahead_ns))]


def test_times_of_another_host_are_told_by_the_clock_of_the_first_file(tmp_path: Path) -> None:
    here, there, elsewhere = on_hosts(tmp_path, 7_000_000_000, 9_000_000_000, 2_000_000_000)
    assert here == (5, 9)
    assert there == (2_000_000_005, None)
    assert elsewhere == (-4_999_999_995, -4_999_999_991)


def test_clocks_of_one_host_drift_and_shift_nothing(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 7_000_000_000, 8_000_000_000, 6_000_000_000) == [(5, 9), (5, None), (5, 9)]


@pytest.mark.parametrize(("boot", "by_ns"), [("one", 0), ("other", 90_000_000_000)])
def test_hosts_are_told_apart_by_their_boots_where_files_say_them(tmp_path: Path, boot: str, by_ns: int) -> None:
    heads = [
        HEAD_WITH_CLOCK.replace('"boot":""', f'"boot":"{each}"').replace("1000000000", str(ahead))
        for each, ahead in (("one", 7_000_000_000), (boot, 97_000_000_000))
    ]
    paths = [tmp_path / "a.history", tmp_path / "b.history"]
    for path, head in zip(paths, heads, strict=True):
        path.write_text(head + BEGUN.replace('"p":"a"', f'"p":"{path.stem}"'))
    found = {row.process: row.invoked_ns for row in read_history(paths)}
    assert found == {"a": 5, "b": 5 + by_ns}


def test_two_hosts_that_booted_within_a_second_are_two(tmp_path: Path) -> None:
    for name, ahead in (("one", 7_000_000_000), ("two", 7_000_000_500)):
        head = HEAD_WITH_CLOCK.replace('"boot":""', f'"boot":"{name}"').replace("1000000000", str(ahead))
        (tmp_path / name).write_text(head + BEGUN.replace('"p":"a"', f'"p":"{name}"'))
    assert {row.invoked_ns for row in read_history([tmp_path / "one", tmp_path / "two"])} == {5, 505}


def test_all_files_of_another_host_are_shifted_alike(tmp_path: Path) -> None:
    _, one, other = on_hosts(tmp_path, 7_000_000_000, 90_000_000_000, 90_000_000_300)
    assert one[0] == other[0] == 83_000_000_005


def test_a_file_that_does_not_tell_its_clock_stays_as_it_is(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, None, 7_000_000_000, None) == [(5, 9), (5, None), (5, 9)]


@pytest.mark.parametrize("ended", [ENDED.replace(',"offset":3', ""), ENDED.replace("3", "null")])
def test_an_acknowledgement_without_an_offset_is_read(tmp_path: Path, ended: str) -> None:
    (row,) = read_history([written(tmp_path, HEAD + BEGUN + ended)])
    assert (row.outcome, row.offset, row.completed_ns) == (Outcome.OK, None, 9)


def test_an_acknowledgement_without_an_offset_is_written(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    writer = HistoryWriter(path, "a")
    writer.produced(writer.invoke(Kind.PRODUCE, "k/0", value="v"), None)
    writer.close()
    (row,) = read_history([path])
    assert (row.outcome, row.offset) == (Outcome.OK, None)


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    (row,) = read_history([written(tmp_path, HEAD + BEGUN + ENDED[:20])])
    assert row.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", "", "it has no first line"),
        ("{}\n", ":1", '"format" is None'),
        (HEAD.replace("1", "2"), ":1", "version 2; this reader knows 1"),
        (HEAD_WITH_CLOCK.replace("1000000000", "1.5"), ":1", "'wall_ahead_ns' is 1.5, not int"),
        (HEAD + "nonsense\n", ":2", "not JSON"),
        (HEAD + "[]\n", ":2", "not an object"),
        (HEAD + BEGUN.replace("invoke", "begin"), ":2", "unknown event 'begin'"),
        (HEAD + BEGUN.replace("produce", "consume"), ":2", "unknown operation 'consume'"),
        (HEAD + BEGUN.replace('"t":5', '"t":"5"'), ":2", "'t' is '5', not int"),
        (HEAD + BEGUN.replace('"t":5', '"t":true'), ":2", "'t' is True, not int"),
        (HEAD + BEGUN.replace('"key":"k",', ""), ":2", "'key' is None, not str"),
        (HEAD + BEGUN.replace(',"value":"v"', ""), ":2", "produces no value"),
        (HEAD + BEGUN.replace('"n":0', '"n":1'), ":2", "a begins operation 1 where 0 must follow"),
        (HEAD + BEGUN + BEGUN, ":3", "a begins operation 0 where 1 must follow"),
        (HEAD + ENDED, ":2", "which it has not begun"),
        (HEAD + BEGUN + ENDED + ENDED, ":4", "or has ended before"),
        (HEAD + BEGUN + ENDED.replace('"t":9', '"t":4'), ":3", "ends before it begins"),
        (HEAD + BEGUN.replace("produce", "end") + ENDED.replace(',"offset":3', ""), ":3", "'offset' is None, not int"),
        (HEAD + BEGUN + ENDED.replace("3", '"3"'), ":3", "'offset' is '3', not int"),
        (
            HEAD + BEGUN.replace("produce", "fetch") + ENDED.replace('"offset":3', '"records":[["0","v"]]'),
            ":3",
            "is not [offset, value]",
        ),
    ],
)
def test_a_file_that_is_not_a_history_says_where_and_why(tmp_path: Path, text: str, line: str, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(HistoryError) as raised:
        read_history([path])
    assert str(raised.value).startswith(f"{path}{line}:")
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (HEAD + BEGUN + ENDED, 0, "valid: 1 keys, 1 acknowledged"),
        (HEAD + BEGUN.replace("produce", "fetch") + ENDED.replace('"offset":3', '"records":[[0,"v"]]'), 1, "NOT VALID"),
        ("{}\n", 2, "not a history"),
    ],
)
def test_the_command_prints_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    assert command.main([str(written(tmp_path, text))]) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
