"""Rules of a broker's life while commands are applied; its states are the table in brokers.py.

Rule 1: a registration never changes a disk. A new disk is a command of its own, proposed only while the broker with
the old one is not heard; it begins a new life of that broker.
Rule 2: with a new life, and with a removal, every group that may still count on the old one has to remove it first.
Rule 3: the last active broker is not drained, and nobody is removed who holds the only replica of something.
Rule 4: until the region is at feature level 2 only registrations exist, as brokers of the first version know them.
"""

from __future__ import annotations

from dataclasses import replace

from georelay.errors import BadRequest, DataDirectoryError, PolicyViolation
from georelay.ids import BrokerId, region_of
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerEvent, BrokerRecord, BrokerState, after
from region.controller.effects import Done, Effect, Outcome, Refused
from region.controller.ledger import RegionLedger
from region.controller.registration import BrokerRegistration

_WISHES = {BrokerEvent.DRAIN: "be drained", BrokerEvent.REMOVE: "be removed", BrokerEvent.ADD: "be added"}
_WHAT_TO_DO = {
    BrokerEvent.DRAIN: "an absent broker's replicas are moved already; remove it, or start it",
    BrokerEvent.REMOVE: "drain it first, and wait until it is drained",
}


def register(ledger: RegionLedger, registration: BrokerRegistration, effects: list[Effect]) -> Outcome:
    """Record where a broker listens, under the disk that is known for it."""
    broker = registration.broker
    refused = refuse_registration(ledger, registration)
    if refused is not None:
        return refused
    record = ledger.records.get(broker)
    known = record if record is not None else BrokerRecord(broker=broker)
    if known.registration != registration:
        ledger.put_record(replace(known, registration=registration), effects)
        ledger.settle(effects)
        ledger.metadata_changed(effects)
    return Done()


def refuse_registration(ledger: RegionLedger, registration: BrokerRegistration) -> Refused | None:
    """Return why a registration is refused, None when it is not."""
    broker = registration.broker
    record = ledger.records.get(broker)
    if record is None and ledger.topology is not None:
        if ledger.has_life_cycle and region_of(broker) == ledger.topology.region:
            number = broker % 1000
            text = f"broker {broker} is not known in this region: 'georelay broker add {number}' lets it in"
            return Refused(error=PolicyViolation, text=text)
        return Refused(error=PolicyViolation, text=f"broker {broker} is not one of this region")
    if record is not None and record.state is BrokerState.REMOVED:
        return Refused(error=PolicyViolation, text=f"broker {broker} was removed from this region; add it again first")
    if record is not None and record.disk and record.disk != registration.disk_uuid:
        text = (
            f"broker {broker} is known with disk {record.disk}, not {registration.disk_uuid}: "
            "start it on its own data directory"
        )
        return Refused(error=DataDirectoryError, text=text)
    if registration.feature_level_max < ledger.feature_level:
        text = (
            f"broker {broker} reads feature level {registration.feature_level_max}, "
            f"this region is at {ledger.feature_level}: start a newer version"
        )
        return Refused(error=PolicyViolation, text=text)
    return None


def add(ledger: RegionLedger, broker: BrokerId, peers: str, effects: list[Effect]) -> Outcome:
    """Let a broker in, or let it take replicas again."""
    assert ledger.topology is not None
    if region_of(broker) != ledger.topology.region:
        text = f"broker {broker} carries another region's number than {ledger.topology.region}"
        return Refused(error=BadRequest, text=text)
    record = ledger.records.get(broker)
    if record is None:
        record = BrokerRecord(broker=broker, peers=peers)
    elif record.state is BrokerState.REMOVED:  # a new life: neither disk nor address of the old one counts
        record = BrokerRecord(broker=broker, peers=peers, generation=record.generation + 1)
    else:
        state = after(record.state, BrokerEvent.ADD)
        assert state is not None, record.state
        record = replace(record, state=state, peers=peers or record.peers)
    return _changed(ledger, record, effects)


def drain(ledger: RegionLedger, broker: BrokerId, effects: list[Effect]) -> Outcome:
    """Have every replica of a broker moved to others."""
    if not any(r.takes_replicas for r in ledger.records.values() if r.broker != broker):
        return Refused(error=PolicyViolation, text=f"broker {broker} is the only one that takes replicas; add another")
    return _happens(ledger, broker, BrokerEvent.DRAIN, effects)


def remove(ledger: RegionLedger, broker: BrokerId, effects: list[Effect]) -> Outcome:
    """Forget a broker; its replicas that are left do not count any more."""
    only = sum(group.members <= {broker} | group.unsafe for group in ledger.groups)
    if only:
        text = f"broker {broker} holds the only replica of {only} streams; start it, or delete their topics"
        return Refused(error=PolicyViolation, text=text)
    outcome = _happens(ledger, broker, BrokerEvent.REMOVE, effects)
    if isinstance(outcome, Done) and effects:
        ledger.records[broker] = replace(ledger.records[broker], registration=None, founding_disk="", peers="")
        _expel(ledger, broker, effects)
        ledger.settle(effects)
    return outcome


def replace_disk(
    ledger: RegionLedger, registration: BrokerRegistration, replaces: str, effects: list[Effect]
) -> Outcome:
    """Begin a new life of a broker whose disk is gone."""
    broker = registration.broker
    record = ledger.records.get(broker)
    if record is None or record.state is BrokerState.REMOVED:
        return Refused(error=PolicyViolation, text=f"broker {broker} is not one of this region; add it first")
    if record.disk == registration.disk_uuid:
        return register(ledger, registration, effects)
    if record.disk != replaces:
        text = f"broker {broker} is known with disk {record.disk} meanwhile, not with {replaces}"
        return Refused(error=DataDirectoryError, text=text)
    if registration.feature_level_max < ledger.feature_level:
        text = f"broker {broker} does not read feature level {ledger.feature_level}: start a newer version"
        return Refused(error=PolicyViolation, text=text)
    state = after(record.state, BrokerEvent.NEW_DISK)
    assert state is not None, record.state
    ledger.put_record(
        replace(record, state=state, registration=registration, generation=record.generation + 1, founding_disk=""),
        effects,
    )
    _expel(ledger, broker, effects)
    ledger.settle(effects)
    ledger.metadata_changed(effects)
    return Done()


def went_away(ledger: RegionLedger, broker: BrokerId, effects: list[Effect]) -> Outcome:
    """Record that a broker was not heard for long."""
    return _happens(ledger, broker, BrokerEvent.AWAY, effects)


def came_back(ledger: RegionLedger, broker: BrokerId, effects: list[Effect]) -> Outcome:
    """Record that an absent broker is heard again."""
    return _happens(ledger, broker, BrokerEvent.BACK, effects)


def _expel(ledger: RegionLedger, broker: BrokerId, effects: list[Effect]) -> None:
    def expelled(assignment: Assignment) -> Assignment:
        return assignment.without(broker, generation=ledger.applied_index)

    ledger.change_groups(expelled, effects)


def _happens(ledger: RegionLedger, broker: BrokerId, event: BrokerEvent, effects: list[Effect]) -> Outcome:
    record = ledger.records.get(broker)
    if record is None:
        return Refused(error=BadRequest, text=f"broker {broker} is not known in this region")
    state = after(record.state, event)
    if state is None:
        wish = _WISHES.get(event, event.value)
        advice = _WHAT_TO_DO.get(event, "nothing is to be done")
        return Refused(error=PolicyViolation, text=f"broker {broker} is {record.state} and cannot {wish}: {advice}")
    return _changed(ledger, replace(record, state=state), effects)


def _changed(ledger: RegionLedger, record: BrokerRecord, effects: list[Effect]) -> Outcome:
    ledger.put_record(record, effects)
    if effects:
        ledger.settle(effects)
        ledger.metadata_changed(effects)
    return Done()
