"""What each listener of one process is given: TLS, limits and where it counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.tls import TlsContexts
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits
from mesh.listening.grpc_requests import RequestBudget
from mesh.listening.settings import LimitsSection, TlsSection


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerParts:
    """Of one listener; `contexts` is None for plain text."""

    name: str
    contexts: TlsContexts | None
    limits: AdmissionLimits
    counters: AdmissionCounters


class Listeners:
    """Of one process, by name.

    Args:
        names: of clients' listeners.
        mutual: of brokers' listeners: both ends show certificates.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(
        self, tls: TlsSection, limits: LimitsSection, *, names: Collection[str], mutual: Collection[str] = ()
    ) -> None:
        self._parts = {
            name: ListenerParts(
                name=name,
                contexts=tls.contexts(name, mutual=name in mutual),
                limits=limits.admission(),
                counters=AdmissionCounters(),
            )
            for name in (*names, *mutual)
        }

    def __getitem__(self, name: str) -> ListenerParts:
        """Return the parts of one listener."""
        return self._parts[name]

    @property
    def parts(self) -> Mapping[str, ListenerParts]:
        """Return all."""
        return self._parts


class ListeningCollector(Collector):
    """Admission and certificates as metric families; reads the counters when it is scraped.

    Args:
        dialing: contexts that are used for dialing only.
        request_bytes: held for requests without an answer, by listener.
        budgets: the same of gRPC's listeners, with what they may hold.
    """

    def __init__(
        self,
        listeners: Listeners,
        *,
        dialing: Collection[TlsContexts] = (),
        request_bytes: Callable[[], Mapping[str, int]] = dict,
        budgets: Callable[[], Mapping[str, RequestBudget]] = dict,
    ) -> None:
        self._budgets = budgets
        self._listeners = listeners
        self._dialing = dialing
        self._request_bytes = request_bytes

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        label = ("listener",)
        opened = GaugeMetricFamily("georelay_listener_connections", "Connections that were let in", labels=label)
        handshakes = GaugeMetricFamily("georelay_listener_handshakes", "TLS handshakes under way", labels=label)
        accepted = CounterMetricFamily("georelay_listener_accepted", "Connections let in", labels=label)
        restarts = CounterMetricFamily(
            "georelay_listener_restarts", "Servers that stopped by themselves and were started again", labels=label
        )
        refused = CounterMetricFamily(
            "georelay_listener_refused", "Connections refused or cut off, by reason", labels=("listener", "reason")
        )
        held = GaugeMetricFamily(
            "georelay_listener_request_bytes", "Bytes of requests that have no answer yet", labels=label
        )
        for name, parts in self._listeners.parts.items():
            counters = parts.counters
            opened.add_metric((name,), counters.connections_open)
            handshakes.add_metric((name,), counters.handshakes_open)
            accepted.add_metric((name,), counters.accepted)
            restarts.add_metric((name,), counters.restarts)
            for reason, count in counters.refused.items():
                refused.add_metric((name, reason.value), count)
        for name, size_bytes in self._request_bytes().items():
            held.add_metric((name,), size_bytes)
        for name, budget in self._budgets().items():
            held.add_metric((name,), budget.used_bytes)
        yield from (opened, handshakes, accepted, restarts, refused, held)
        yield from self._calls()
        yield from self._certificates()

    def _calls(self) -> Iterator[Metric]:
        label = ("listener",)
        room = GaugeMetricFamily(
            "georelay_listener_request_bytes_max", "Bytes of requests beyond which calls are refused", labels=label
        )
        calls = GaugeMetricFamily("georelay_listener_calls", "gRPC calls that run now", labels=label)
        most = GaugeMetricFamily("georelay_listener_calls_max", "gRPC calls that may run at once", labels=label)
        refused = CounterMetricFamily(
            "georelay_listener_calls_refused", "gRPC calls refused for want of room for their requests", labels=label
        )
        for name, budget in self._budgets().items():
            room.add_metric((name,), budget.limit_bytes)
            calls.add_metric((name,), budget.calls_open)
            most.add_metric((name,), budget.calls_max)
            refused.add_metric((name,), budget.calls_refused)
        yield from (room, calls, most, refused)

    def _certificates(self) -> Iterator[Metric]:
        expires = GaugeMetricFamily(
            "georelay_tls_certificate_expires_seconds",
            "Time to the end of the certificate (cert) and of the first authority to end (ca); negative: it is over",
            labels=("listener", "kind"),
        )
        reloads = CounterMetricFamily("georelay_tls_reloads", "Certificates taken anew", labels=("listener",))
        failures = CounterMetricFamily(
            "georelay_tls_reload_failures", "Files that could not be used; the old are kept", labels=("listener",)
        )
        listening = [parts.contexts for parts in self._listeners.parts.values()]
        for contexts in (*listening, *self._dialing):
            if contexts is None:
                continue
            for kind, seconds in contexts.expires_s().items():
                expires.add_metric((contexts.name, kind), seconds)
            reloads.add_metric((contexts.name,), contexts.reloads)
            failures.add_metric((contexts.name,), contexts.reload_failures)
        yield from (expires, reloads, failures)
