"""Prometheus families about security, read from the guard of a broker when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from region.broker.guard import Guard
from region.controller.security_book import SecurityBook
from region.security.definition import Kind


class SecurityCollector(Collector):
    """Counts of the audit log and of quotas; how many users, entries and quotas this broker knows."""

    def __init__(self, guard: Guard, *, book: Callable[[], SecurityBook]) -> None:
        self._guard = guard
        self._book = book

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        audit = self._guard.audit
        events = CounterMetricFamily(
            "georelay_security_events", "Events of the audit log, repeated ones included.", labels=["event"]
        )
        events.add_metric(["sign_in_refused"], audit.sign_ins_refused)
        events.add_metric(["denied"], audit.denials)
        events.add_metric(["changed"], audit.changes)
        yield events
        yield CounterMetricFamily(
            "georelay_quota_pauses_seconds",
            "Pauses that clients over their quota were told to make.",
            value=self._guard.quotas.throttled_ms / 1_000,
        )
        book = self._book()
        known = GaugeMetricFamily(
            "georelay_security_definitions", "What this broker knows of users, lists and quotas.", labels=["kind"]
        )
        known.add_metric(["user"], book.count(Kind.USER))
        known.add_metric(["acl_entry"], book.entry_count)
        known.add_metric(["quota"], book.count(Kind.QUOTA))
        yield known
        yield GaugeMetricFamily(
            "georelay_authorization_enforced",
            "1 when clients need to be granted what they do.",
            value=float(self._guard.access.enforced),
        )
