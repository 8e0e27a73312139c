"""What may be asked of a running test bed, and what it answers: JSON objects, one per datagram.

{"op": "cut", "from": "us", "to": "eu", "one_way": false}     "to" = "": every pair of "from"
{"op": "heal", "from": "us", "to": "eu"}                      back to what the bed was started with; "" = all
{"op": "set", "from": "us", "to": "eu", "one_way": false, "delay_us": 100000, "loss_ppm": 10000, ...}
{"op": "stat"}   {"op": "stop"}

Rule 1: an answer has "ok": true, or "error" with one line; a request that is refused changes nothing. The router adds
        "at_ns", its monotonic clock after the change: whoever measures needs to know when a link was cut.
Rule 2: pure; the paths it changes are those of the delay line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from georelay.errors import ConfigError
from georelay.fields import FieldError, Fields, JsonObject, parse_object
from georelay.limits import REGION_NAME_CHARS_MAX
from mesh.testbed.path_core import PathCounters, PathSettings
from mesh.testbed.plan_core import BedPlan
from mesh.testbed.quantities_core import DURATION_US_MAX, RATE_BITS_S_MAX, SHARE_PPM_MAX

REQUEST_BYTES_MAX: Final = 4_096
_HIGHEST: Final = {
    "delay_us": DURATION_US_MAX,
    "jitter_us": DURATION_US_MAX,
    "loss_ppm": SHARE_PPM_MAX,
    "rate_bits_s": RATE_BITS_S_MAX,
    "queue_us": DURATION_US_MAX,
}
Pair = tuple[int, int]


class ControlledPath(Protocol):
    """One direction between two regions, whoever delays its packets."""

    @property
    def settings(self) -> PathSettings:
        """Return how it behaves."""

    @property
    def counters(self) -> PathCounters:
        """Return what happened on it."""

    def change(self, settings: PathSettings) -> None:
        """Behave otherwise. Raises ConfigError where it cannot; then nothing was changed."""


class BedControl:
    """Changes paths as it is told.

    Args:
        paths: by (source index, destination index); all pairs of the plan.
    """

    def __init__(self, plan: BedPlan, paths: Mapping[Pair, ControlledPath]) -> None:
        self._plan = plan
        self._paths = paths
        self._first = {pair: path.settings for pair, path in paths.items()}
        self.is_stopped = False

    def answer(self, raw: bytes) -> JsonObject:
        """Return the answer to one request; what is wrong with it is in the answer."""
        try:
            fields = Fields(parse_object(raw, bytes_max=REQUEST_BYTES_MAX), "request")
            answer = self._do(fields)
        except (FieldError, ConfigError) as error:
            return {"error": str(error)}
        return {"ok": True, **answer}

    def source_needs_single_packets(self, source: int) -> bool:
        """Return whether large packets must not leave a region (PathSettings.needs_single_packets of any path)."""
        return any(path.settings.needs_single_packets for (one, _), path in self._paths.items() if one == source)

    def _do(self, fields: Fields) -> JsonObject:
        match fields.text("op", chars_max=10):
            case "cut":
                pairs = self._pairs(fields, one_way=fields.flag("one_way"))
                fields.done()
                self._change({pair: replace(self._paths[pair].settings, is_cut=True) for pair in pairs})
            case "heal":
                pairs = self._pairs(fields, one_way=False)
                fields.done()
                self._change({pair: self._first[pair] for pair in pairs})
            case "set":
                pairs = self._pairs(fields, one_way=fields.flag("one_way"))
                changed = {
                    name: fields.integer(name, low=0, high=high) for name, high in _HIGHEST.items() if fields.has(name)
                }
                fields.done()
                self._change({pair: _changed(self._paths[pair].settings, changed) for pair in pairs})
            case "stat":
                fields.done()
                return {"paths": self._stat()}
            case "stop":
                fields.done()
                self.is_stopped = True
            case other:
                raise FieldError(f"request.op: {other!r} is not one of cut, heal, set, stat, stop")
        return {}

    def _change(self, changes: Mapping[Pair, PathSettings]) -> None:
        for pair, settings in changes.items():
            self._paths[pair].change(settings)

    def _pairs(self, fields: Fields, *, one_way: bool) -> list[Pair]:
        """Return the directed pairs that "from" and "to" mean."""
        names = [fields.text(end, chars_max=REGION_NAME_CHARS_MAX) for end in ("from", "to")]
        source, destination = (self._plan.region(name).index if name else 0 for name in names)
        if source and source == destination:
            raise FieldError(f"a region has no path to itself ({names[0]})")
        if destination and not source:
            raise FieldError("request.from is empty and request.to is not")
        wanted = []
        for one, other in self._paths:
            forth = source in (0, one) and destination in (0, other)
            back = source in (0, other) and destination in (0, one)
            if forth or (back and not one_way):
                wanted.append((one, other))
        return wanted

    def _stat(self) -> list[object]:
        names = {place.index: place.name for place in self._plan.regions}
        rows: list[object] = []
        for (source, destination), path in self._paths.items():
            settings, counters = path.settings, path.counters
            rows.append(
                {
                    "from": names[source],
                    "to": names[destination],
                    **{name: getattr(settings, name) for name in ("delay_us", "jitter_us", "loss_ppm", "rate_bits_s")},
                    "cut": settings.is_cut,
                    **{name: getattr(counters, name) for name in ("packets", "bytes", "lost", "queue_full")},
                    "cut_off": counters.cut,
                }
            )
        return rows


def _changed(settings: PathSettings, changes: Mapping[str, int]) -> PathSettings:
    known: dict[str, Any] = dict(changes)  # names of integer fields, from _HIGHEST
    return replace(settings, **known)
