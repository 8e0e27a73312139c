"""GET /v1/overview: the mesh at one look, made of what brokers answered last. Pure.

Rule 1: it holds what DESCRIBE of the cluster is enough for, and no record: one document serves every viewer.
Rule 2: what is out of order comes first, each with what to do (georelay.cli.mesh_status_core says what that is).
Rule 3: it is bounded: TOPICS_SHOWN_MAX topics, the busiest first; everything else grows with regions and brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.console.layout_core import Point, layout
from gateway.console.loss_core import if_lost
from gateway.console.pairs_core import Pair, pairs_of, round_trips_ms
from gateway.console.samples import (
    DISK_FREE,
    DISK_WRITABLE,
    GROUPS,
    ORPHANS,
    QUEUES,
    BrokerSample,
    JsonObject,
    MeshSamples,
    rows_of,
)
from gateway.console.sla_core import BREACH, NOT_PROVEN, judge
from gateway.routing.region_view_core import RankedBroker, RankedRegion
from gateway.routing.rules_core import Kind
from georelay.cli.mesh_status_core import INTERNAL_PREFIX, stream_lines, totals, troubles

SCHEMA_VERSION: Final = 1
TOPICS_SHOWN_MAX: Final = 200
_ADVICE: Final = {
    "cut": "look at the network between the two; records wait at their home and follow by themselves",
    "behind": "see Links; publishing goes on, and the mirror follows by itself once the cause is gone",
    "diverged": "run georelay audit TOPIC, then see docs/operate/audit.md#after-a-divergence",
}


def overview(samples: MeshSamples, *, before: Mapping[str, Point] | None = None) -> JsonObject:
    """Return the document. `before`: where regions stood on the last one."""
    document = status_document(samples)
    pairs = pairs_of(samples)
    alarms = alarms_of(samples, document, pairs)
    places = layout([region.name for region in samples.regions], round_trips_ms(samples), before)
    return {
        "schema_version": SCHEMA_VERSION,
        "mesh": samples.mesh,
        "made_at_ms": round(samples.now_s * 1000),
        "totals": totals(document, stream_lines(document)),
        "alarms": alarms,
        "regions": [
            _region(samples, region, places[region.name])
            for region in sorted(samples.regions, key=lambda region: region.name)
        ],
        "pairs": _with_sla(samples, pairs),
        "if_lost": if_lost(samples),
        "drills": {"last": samples.drills, "why_none": samples.no_drills},
        "control": _control(samples),
        "topics": _topics(samples),
    }


def status_document(samples: MeshSamples) -> JsonObject:
    """Return what GET /v1/status of the gateway would, from the samples; brokers that were not asked are left out."""
    return {
        "mesh": samples.mesh,
        "regions": [
            {
                "region": region.name,
                "number": region.number,
                "ready": region.ready,
                "brokers": [
                    {
                        "id": int(broker.endpoints.id),
                        "ready": broker.ready,
                        "status": samples.brokers[broker.endpoints.id].status,
                        "error": samples.brokers[broker.endpoints.id].error,
                    }
                    for broker in region.brokers
                    if broker.endpoints.id in samples.brokers
                ],
            }
            for region in samples.regions
        ],
    }


def alarms_of(samples: MeshSamples, document: JsonObject, pairs: Sequence[Pair]) -> list[JsonObject]:
    """Return what is out of order, the worst first: `severity` (alarm, warning), `what`, `advice`."""
    explained = {pair.dest for pair in pairs if pair.state in _ADVICE}
    found = [_alarm(line) for line in troubles(document) if not _follows(line, explained)]
    for pair in pairs:
        if pair.state in _ADVICE:
            cause = f": {pair.cause}" if pair.cause else ""
            severity = "warning" if pair.state == "behind" else "alarm"
            found.append(
                {
                    "severity": severity,
                    "what": f"{pair.origin} to {pair.dest}: {pair.words}{cause}",
                    "advice": _ADVICE[pair.state],
                }
            )
    found += [
        {
            "severity": "alarm",
            "what": f"broker {broker} of region {region.name} takes no records: its disk is down to its reserve",
            "advice": "make room on the file system of its data directory, or shorten retention of topics",
        }
        for region in samples.regions
        for broker, sample in samples.of_region(region)
        if sample.gauges.get(DISK_WRITABLE, 1.0) == 0
    ]
    found += [*_control_alarms(samples), *_waiting_for_a_person(samples)]
    return sorted(found, key=lambda alarm: alarm["severity"] != "alarm")


def _waiting_for_a_person(samples: MeshSamples) -> Iterator[JsonObject]:
    """Yield what somebody began, or has to decide, and may have forgotten."""
    for region in samples.regions:
        kept = max((int(sample.gauges.get(ORPHANS, 0)) for _, sample in samples.of_region(region)), default=0)
        if kept:
            what = f"region {region.name} keeps {kept:,} records of orphan branches: a failover cut them off"
            advice = "see Audit: export them before retention deletes them (30 days, 10 GiB); nothing merges them"
            yield {"severity": "warning", "what": what, "advice": advice}
    for rule in samples.rules:
        since = f"{datetime.fromtimestamp(rule.made_us / 1e6, UTC):%Y-%m-%d %H:%M} UTC, by {rule.by or 'nobody known'}"
        if rule.kind == Kind.DRAIN.value:
            what = f"{rule.subject} is drained for clients, since {since}"
            yield {
                "severity": "warning",
                "what": what,
                "advice": f"when it is over: georelay route keep {rule.subject}",
            }
        elif rule.kind == Kind.FREEZE.value:
            what = f"no client moves to a nearer region: switching is frozen since {since}"
            yield {"severity": "warning", "what": what, "advice": "when it is over: georelay route thaw"}


def _follows(line: str, explained: Collection[str]) -> bool:
    """Return whether a trouble is what a pair's alarm says with its cause: mirrors of the region are behind."""
    return any(line.startswith(f"region {region}: behind the home") for region in explained)


def _control_alarms(samples: MeshSamples) -> list[JsonObject]:
    control = samples.control
    found: list[JsonObject] = []
    if control is not None and control.get("has_majority"):
        found += [
            {
                "severity": "warning",
                "what": f"region {region} does not reach mesh control: {said.get('error', 'no reason is known')}",
                "advice": "others do: it goes on with what it knows, and learns of moves and new topics later",
            }
            for region, said in sorted(samples.controls.items())
            if said.get("has_majority") is False
        ]
    if control is not None:
        if control.get("has_majority") is False:
            what = f"mesh control has no majority: {control.get('error', 'its leader does not answer')}"
            advice = "homes cannot move until it has; if the majority is gone for good: docs/operate/mesh-control.md"
            found.append({"severity": "alarm", "what": what, "advice": advice})
        lines = [text for text in control.get("alarms", ()) if isinstance(text, str)]
        found += [{"severity": "alarm", "what": text, "advice": "docs/operate/mesh-control.md"} for text in lines]
    return found


def _alarm(line: str) -> JsonObject:
    """Return one line of troubles() as an alarm; it names what to do after its last semicolon, where it does."""
    what, semicolon, advice = line.rpartition("; ")
    if not semicolon:
        what, advice = line, "see Brokers; what is written with a majority is safe meanwhile"
    return {"severity": "alarm" if line.startswith("region") else "warning", "what": what, "advice": advice}


def _region(samples: MeshSamples, region: RankedRegion, place: Point) -> JsonObject:
    asked = list(samples.of_region(region))
    answers = [sample for _, sample in asked if sample.status is not None]
    rates: dict[tuple[str, int, str], float] = {}
    for sample in reversed(answers):
        rates |= {key: rate for key, rate in sample.rates.items() if not key[0].startswith(INTERNAL_PREFIX)}
    homes = {
        (str(row["topic"]), int(row["partition"]))
        for _, sample in asked
        for row in rows_of(sample.last_status, "streams")
        if row.get("is_home") and not str(row["topic"]).startswith(INTERNAL_PREFIX)
    }
    silent = bool(asked) and not answers
    return {
        "name": region.name,
        "number": int(region.number),
        "state": "silent" if silent else "ready" if region.ready else "not_ready",
        "words": _region_words(region, asked, silent=silent),
        "gateway_rtt_ms": None if region.rtt_ns is None else round(region.rtt_ns / 1e6, 2),
        "x_ms": place[0],
        "y_ms": place[1],
        "homes": len(homes),
        "topics": len({topic for topic, _ in homes}),
        "groups": _summed(asked, GROUPS),
        "queues": _summed(asked, QUEUES),
        "records_per_s": round(sum(rates.values()), 1),
        "brokers": [_broker(samples, broker) for broker in sorted(region.brokers, key=lambda b: b.endpoints.id)],
    }


def _summed(asked: list[tuple[int, BrokerSample]], name: str) -> int | None:
    """Return a gauge of all brokers together, None while none has told its gauges."""
    told = [sample.gauges for _, sample in asked if sample.gauges]
    return int(sum(gauges.get(name, 0.0) for gauges in told)) if told else None


def _region_words(region: RankedRegion, asked: list[tuple[int, BrokerSample]], *, silent: bool) -> str:
    if not asked:
        return "not asked yet"
    if silent:
        return f"does not answer: {asked[0][1].error}"
    ready = len(region.ready_brokers)
    if ready == len(region.brokers):
        return "ready" if ready == 1 else f"all {ready} brokers ready"
    return f"{ready} of {len(region.brokers)} brokers ready"


def _broker(samples: MeshSamples, broker: RankedBroker) -> JsonObject:
    sample = samples.brokers.get(broker.endpoints.id)
    status = None if sample is None else sample.status
    streams = rows_of(status, "streams")
    gauges = {} if sample is None else sample.gauges
    return {
        "id": int(broker.endpoints.id),
        "ready": broker.ready,
        "error": "" if sample is None else sample.error,
        "age_ms": None if sample is None else max(0, samples.now_ns - sample.at_ns) // 1_000_000,
        "rtt_ms": None if broker.rtt_ns is None else round(broker.rtt_ns / 1e6, 2),
        "kafka": broker.endpoints.kafka,
        "admin": broker.endpoints.admin,
        "streams": len(streams),
        "leads": sum(1 for row in streams if row.get("is_leader")),
        "disk_free_bytes": gauges.get(DISK_FREE),
        "disk_writable": gauges.get(DISK_WRITABLE, 1.0) > 0,
        "is_controller": status is not None and status.get("controller") == int(broker.endpoints.id),
    }


def _with_sla(samples: MeshSamples, pairs: Sequence[Pair]) -> list[JsonObject]:
    judged, why = judge(samples.live, now_s=samples.now_s, no_live=samples.no_live)
    nothing = {
        "state": NOT_PROVEN,
        "words": why or "the live view has no record of this pair",
        "records": 0,
        "p50_ms": None,
        "p99_ms": None,
    }
    return [pair.to_json() | {"sla": judged.get((pair.origin, pair.dest), nothing)} for pair in pairs]


def _control(samples: MeshSamples) -> JsonObject | None:
    """Return who orders what the mesh consists of."""
    control = samples.control
    if control is None:
        return None
    names = {int(region.number): region.name for region in samples.regions}
    replicas = rows_of(control, "replicas")
    leader = next((row for row in replicas if row.get("broker") == control.get("leader")), None)
    return {
        "has_majority": bool(control.get("has_majority")),
        "generation": control.get("generation"),
        "leader": control.get("leader"),
        "leader_region": "" if leader is None else names.get(int(leader.get("region", 0)), ""),
        "voters": sum(1 for row in replicas if row.get("role") == "voter"),
        "voters_alive": sum(1 for row in replicas if row.get("role") == "voter" and row.get("alive")),
    }


def _topics(samples: MeshSamples) -> list[JsonObject]:
    """Return the busiest topics: records kept and records per second over all regions, and where their homes are."""
    kept: dict[tuple[str, int, str], int] = {}
    rates: dict[tuple[str, int, str], float] = {}
    for region in samples.regions:
        for _, sample in samples.of_region(region):
            for row in rows_of(sample.last_status, "streams"):
                if not row.get("is_home") or str(row["topic"]).startswith(INTERNAL_PREFIX):
                    continue
                key = (str(row["topic"]), int(row["partition"]), str(row["home"]))
                kept[key] = max(kept.get(key, 0), int(row["high_watermark"]) - int(row["log_start"]))
            rates |= {key: rate for key, rate in sample.rates.items() if key in kept}
    topics: dict[str, JsonObject] = {}
    for (topic, _, home), records in kept.items():
        row = topics.setdefault(topic, {"name": topic, "streams": 0, "records": 0, "records_per_s": 0.0, "homes": {}})
        row["streams"] += 1
        row["records"] += records
        row["homes"][home] = row["homes"].get(home, 0) + 1
    for (topic, _, _), rate in rates.items():
        topics[topic]["records_per_s"] = round(topics[topic]["records_per_s"] + rate, 1)
    busiest = sorted(topics.values(), key=lambda row: (-row["records_per_s"], -row["records"], row["name"]))
    return busiest[:TOPICS_SHOWN_MAX]


def verdict(document: JsonObject) -> str:
    """Return "ok", "warning" or "alarm" of an overview: also for breaches of the promised latency."""
    if any(alarm["severity"] == "alarm" for alarm in document["alarms"]):
        return "alarm"
    breaches = any(pair["sla"]["state"] == BREACH for pair in document["pairs"])
    return "warning" if document["alarms"] or breaches else "ok"
