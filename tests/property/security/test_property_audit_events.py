"""The audit logs of a region, read page by page, have every event once and in order, whatever its brokers hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from georelay.ids import BrokerId
from region.security.audit_events_core import EVENTS, EventKey, EventsAsked, KeptEvents, merged, page_json, read_page

LOGS = st.lists(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(EVENTS), st.integers(1, 32_000)), max_size=12),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(LOGS, st.integers(1, 9), st.sampled_from(("", *EVENTS)))
def test_pages_have_every_event_once_and_the_newest_first(
    logs: list[list[tuple[int, str, int]]], limit: int, event: str
) -> None:
    brokers = {BrokerId(1001 + number): KeptEvents(BrokerId(1001 + number)) for number in range(len(logs))}
    wanted: list[EventKey] = []
    for (broker, kept), log in zip(brokers.items(), logs, strict=True):
        for seconds, name, size in log:
            at_us = kept.time_us(seconds)
            kept.add(at_us, name, '{"x":"' + "y" * size + '"}')
            wanted += [EventKey(at_us, broker)] if event in ("", name) else []
    found: list[EventKey] = []
    asked = EventsAsked(event=event, limit=limit)
    while True:
        pages = {
            broker: read_page(page_json(kept.page(asked)), broker=broker, asked=asked)
            for broker, kept in brokers.items()
        }
        page = merged(pages, limit)
        assert len(page.rows) <= limit
        found += [row.key for row in page.rows]
        if page.following is None:
            break
        assert page.rows
        asked = EventsAsked(event=event, limit=limit, before=page.following)
    assert found == sorted(wanted, reverse=True)
