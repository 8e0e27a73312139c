"""What a broker remembers of its audit log, and how the logs of a region become one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import BadRequest, Unavailable
from georelay.fields import FieldError
from georelay.ids import BrokerId
from region.broker.audit_events import EVENTS_METHOD, RegionAuditEvents
from region.security.access import Principal
from region.security.audit import AuditLog
from region.security.audit_events_core import EVENT_CHARS_MAX, EVENTS_MAX, EventsAsked, KeptEvents, read_page

ROOT = Principal(name="User:root", host="10.0.0.1")
ONE, TWO, THREE = BrokerId(1001), BrokerId(1002), BrokerId(1003)


def log_of(kept: KeptEvents, file: Path | None = None) -> AuditLog:
    return AuditLog(file, kept=kept, wall_s=lambda: 1_700_000_000.0, monotonic_s=lambda: 0.0)


def users(page: Any) -> list[str]:
    return [json.loads(row.text)["user"] for row in page.rows]


def test_events_of_one_moment_keep_their_order_and_their_names_differ() -> None:
    kept = KeptEvents(ONE)
    log = log_of(kept)
    for name in "abc":
        log.changed(ROOT, "user.added", outcome="done", user=name)
    page = kept.page(EventsAsked())
    assert users(page) == ["c", "b", "a"] and not page.more
    assert len({row.key for row in page.rows}) == 3
    assert users(kept.page(EventsAsked(before=page.rows[1].key))) == ["a"]


def test_a_flood_of_refused_sign_ins_pushes_no_change_out() -> None:
    kept = KeptEvents(ONE)
    log_of(kept).changed(ROOT, "user.added", outcome="done", user="bob")
    for number in range(2 * EVENTS_MAX):
        kept.add(2_000_000_000_000_000 + number, "sign_in.refused", '{"user":"x"}')
    assert users(kept.page(EventsAsked(event="security.changed"))) == ["bob"]
    page = kept.page(EventsAsked())
    assert len(page.rows) == 200 and page.more


def test_what_is_remembered_is_bounded_by_its_size() -> None:
    kept = KeptEvents(ONE)
    for number in range(200):
        kept.add(number, "cluster.changed", "x" * EVENT_CHARS_MAX)
    kept.add(200, "cluster.changed", "x" * (EVENT_CHARS_MAX + 1))
    page = kept.page(EventsAsked())
    assert len(page.rows) == 8 and page.more  # 256 Ki of characters
    assert page.rows[0].key.at_us == 199
    assert kept.page(EventsAsked(before=page.rows[0].key._replace(at_us=136))).rows == ()


def test_the_file_is_remembered_after_a_restart_and_what_is_no_event_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    old = '{"timestamp": "2023-11-14T22:13:20.000+00:00", "event": "security.changed", "user": "old"}\n'
    file.write_text("\n[]\n{}\n" + old + '{"timestamp": "now", "event": "x"}\n{"timestamp": "2023-11-14"}\n' + old)
    before = log_of(KeptEvents(ONE), file)
    before.changed(ROOT, "user.added", outcome="done", user="new")
    before.close()
    kept = KeptEvents(ONE)
    after = log_of(kept, file)
    assert users(kept.page(EventsAsked())) == ["new", "old", "old"]
    after.changed(ROOT, "user.added", outcome="done", user="newest")
    after.close()
    assert users(kept.page(EventsAsked(limit=1))) == ["newest"]


class Region:
    """Two brokers that hear each other, and one that nobody hears."""

    def __init__(self) -> None:
        self.asked: list[tuple[BrokerId, str]] = []
        self.answer: Any = None
        alive = [ONE, TWO]
        self.brokers = {
            broker: RegionAuditEvents(broker, known=lambda: (ONE, TWO, THREE), alive=lambda: alive, ask=self.ask)
            for broker in alive
        }

    async def ask(self, broker: BrokerId, method: str, body: Any, *, timeout_s: float) -> Any:
        self.asked.append((broker, method))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.brokers[broker].serve(body) if self.answer is None else self.answer


async def test_whoever_is_asked_has_the_logs_of_the_region_and_names_whom_it_did_not_hear() -> None:
    region = Region()
    for number, broker in enumerate((ONE, TWO, ONE, TWO)):
        region.brokers[broker].kept.add(number, "security.changed", json.dumps({"user": str(number)}))
    page = await region.brokers[TWO].page(EventsAsked(limit=3))
    assert users(page) == ["3", "2", "1"] and page.unheard == (THREE,)
    assert region.asked == [(ONE, EVENTS_METHOD)]
    last = await region.brokers[ONE].page(EventsAsked(limit=3, before=page.following))
    assert users(last) == ["0"] and last.following is None


@pytest.mark.parametrize(
    "answer",
    [
        Unavailable("gone"),
        {"rows": [[5, "{}"]]},
        {"rows": [[5, "no JSON"]], "more": False},
        {"rows": [[5, "{}"], [6, "{}"]], "more": False},
        {"rows": [["x", "{}"]], "more": False},
        {"rows": [[5, "{}"]] * 500, "more": False},
    ],
    ids=["gone", "more", "text", "order", "time", "count"],
)
async def test_a_broker_that_answers_oddly_counts_as_not_heard(answer: Any) -> None:
    region = Region()
    region.answer = answer
    region.brokers[ONE].kept.add(1, "security.changed", '{"user":"a"}')
    page = await region.brokers[ONE].page(EventsAsked())
    assert users(page) == ["a"] and page.unheard == (TWO, THREE)


def test_a_question_or_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="limit"):
        Region().brokers[ONE].serve({"before": "", "event": "", "limit": 0})
    with pytest.raises(BadRequest, match="before"):
        Region().brokers[ONE].serve({"before": "x", "event": "", "limit": 1})
    with pytest.raises(FieldError, match="order"):
        read_page({"rows": [[5, "{}"]], "more": False}, broker=ONE, asked=EventsAsked(before=_key(5)))


def _key(at_us: int) -> Any:
    kept = KeptEvents(ONE)
    kept.add(at_us, "x", "{}")
    return kept.page(EventsAsked()).rows[0].key
