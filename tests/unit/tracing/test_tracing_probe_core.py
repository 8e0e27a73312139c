"""Probes that come, come late, or do not come."""

from __future__ import annotations

import pytest

from georelay.fields import FieldError
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.probe_core import NS_PER_S, Probe, ProbeWatch, refused_rows

T0 = 1_700_000_000


def watch(at_s: float = T0) -> ProbeWatch:
    watch = ProbeWatch(origin="us", dest="eu")
    assert watch.tick(int(at_s * NS_PER_S)) == []
    return watch


def probe(seq: int) -> Probe:
    return Probe(prober="us/1001", seq=seq, sent_ns=seq * NS_PER_S + 5)


def arrive(ours: ProbeWatch, seq: int, *, now_s: float) -> Row | None:
    now_ns = int(now_s * NS_PER_S)
    return ours.arrived(probe(seq), published_ns=seq * NS_PER_S + 9, delivered_ns=now_ns, origin_now_ns=now_ns)


def outcomes(rows: list[Row]) -> list[tuple[int, str]]:
    return [(row[3], row[7]) for row in rows]


def test_a_probe_that_comes_in_time_has_one_row() -> None:
    ours = watch()
    assert arrive(ours, T0 + 1, now_s=T0 + 1.25) == (
        "us", "eu", "us/1001", T0 + 1, (T0 + 1) * NS_PER_S + 5, (T0 + 1) * NS_PER_S + 9, int((T0 + 1.25) * NS_PER_S),
        "ok", 5_000,
    )  # fmt: skip
    assert ours.tick((T0 + 7) * NS_PER_S) == []


def test_a_probe_that_comes_twice_has_one_row() -> None:
    ours = watch()
    arrive(ours, T0 + 1, now_s=T0 + 1.25)
    assert arrive(ours, T0 + 1, now_s=T0 + 1.5) is None


def test_what_does_not_come_in_time_is_lost_once_and_late_when_it_comes() -> None:
    ours = watch()
    arrive(ours, T0 + 2, now_s=T0 + 2.1)
    assert ours.tick(int((T0 + 6.9) * NS_PER_S)) == []
    assert outcomes(ours.tick((T0 + 9) * NS_PER_S)) == [(T0 + 1, "lost"), (T0 + 3, "lost")]
    assert ours.tick((T0 + 9) * NS_PER_S) == []
    late = arrive(ours, T0 + 1, now_s=T0 + 9.5)
    assert late is not None
    assert outcomes([late]) == [(T0 + 1, "late")]


def test_nothing_is_said_of_the_time_before_somebody_watched() -> None:
    ours = watch(T0 + 0.5)
    assert arrive(ours, T0 - 200, now_s=T0 + 0.6) is None
    assert outcomes(ours.tick((T0 + 7) * NS_PER_S)) == [(T0 + 1, "lost")]


def test_a_watch_that_slept_begins_anew() -> None:
    ours = watch()
    assert ours.tick((T0 + 10_000) * NS_PER_S) == []
    assert outcomes(ours.tick((T0 + 10_007) * NS_PER_S)) == [(T0 + 10_001, "lost")]


def test_a_probe_that_was_refused_has_a_row_for_every_destination() -> None:
    rows = refused_rows(probe(T0), origin="us", dests=["ap", "eu"])
    assert [(row[0], row[1], row[5], row[6], row[7]) for row in rows] == [
        ("us", "ap", None, None, "refused"),
        ("us", "eu", None, None, "refused"),
    ]


def test_a_probe_reads_back() -> None:
    read = Probe.decode(probe(T0).encode())
    assert (read.prober, read.seq, read.sent_ns) == ("us/1001", T0, T0 * NS_PER_S + 5)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"x" * 300, b'{"prober":"x","seq":-1,"sent_ns":1}', b'{"prober":"x","seq":1,"sent_ns":1,"more":1}'],
    ids=["empty", "fields", "long", "negative", "more"],
)
def test_what_is_no_probe_is_refused(raw: bytes) -> None:
    with pytest.raises(FieldError):
        Probe.decode(raw)
