"""The steps of the lab, in their order: each a thing that an operator does, and what must be true afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from deploy.lab.needs import LabError
from deploy.lab.operator import Operator, changes
from deploy.lab.table import Step, Table

LOST: Final = "broker-2.us"
NEW: Final = ("broker-4.us", "broker-5.us")


def carry_out(operator: Operator, table: Table, *, rate: int, wanted: list[str]) -> None:
    """Carry out the steps named (all: none is named) under load, and fill the table.

    Raises:
        LabError: the mesh could not be set up, or the clients said no verdict.
    """
    _step(operator, table, "site, bare hosts", _site)
    _step(operator, table, "site again", _site_again)
    if any(step.fault for step in table.steps):
        return
    operator.start_load(rate)
    time.sleep(5)
    for name, act in STEPS.items():
        if not wanted or name in wanted:
            _step(operator, table, name, act)
            time.sleep(2)
    table.acknowledged_at, table.verdict = operator.end_load()
    table.finished = True


def _step(operator: Operator, table: Table, name: str, act: Callable[[Operator], None]) -> None:
    begin, fault, is_first = time.time(), "", not table.steps
    brokers = operator.brokers
    with operator.watching() as seen:
        try:
            act(operator)
        except LabError as error:
            fault = str(error)
    worst = "" if is_first or not seen else f"{min(seen)} of {len(brokers)}"
    table.steps.append(Step(name=name, begin=begin, end=time.time(), voters_worst=worst, fault=fault))
    print(f"{name}: {time.time() - begin:.1f} s, {fault or 'as it should'}", flush=True)


def _site(operator: Operator) -> None:
    operator.play("site")


def _site_again(operator: Operator) -> None:
    _unchanged(operator, "site")


def _unchanged(operator: Operator, play: str, **variables: str) -> None:
    """Run a play that has nothing to do."""
    count = changes(operator.play(play, **variables))
    if count:
        raise LabError(f"{play}.yml changed {count} things although all was done")


def _upgrade(operator: Operator) -> None:
    operator.release = operator.releases["next"]
    operator.play("rolling-upgrade")
    _unchanged(operator, "rolling-upgrade")


def _broken(operator: Operator) -> None:
    good, operator.release = operator.release, operator.releases["broken"]
    try:
        operator.play("rolling-upgrade")
    except LabError as error:
        if "did not become ready" not in str(error):
            raise
    else:
        raise LabError("a release that cannot start was taken")
    finally:
        operator.release = good
    operator.play("health")


def _add(operator: Operator) -> None:
    operator.members += NEW
    operator.play("add-brokers", brokers=",".join(NEW))
    _unchanged(operator, "add-brokers", brokers=",".join(NEW))


def _remove(operator: Operator) -> None:
    operator.play("remove-broker", broker=NEW[-1])
    operator.members.remove(NEW[-1])
    operator.play("health")


def _lost_disk(operator: Operator) -> None:
    host = operator.hosts[LOST]
    host.kill()
    host.replace_disk()
    host.boot()
    host.wait_booted(without="var-lib-georelay.mount")
    operator.play("replace-broker", broker=LOST)


def _reboot(operator: Operator) -> None:
    host = operator.hosts["broker-1.us"]
    host.stop()
    host.boot()
    host.wait_booted()
    operator.play("health", georelay_wait_s="120")


STEPS: Final[dict[str, Callable[[Operator], None]]] = {
    "rolling upgrade": _upgrade,
    "broken release": _broken,
    "two brokers added": _add,
    "one removed": _remove,
    "lost disk replaced": _lost_disk,
    "host rebooted": _reboot,
    "certificates rotated": lambda operator: _play(operator, "rotate-certificates"),
    "gossip keys rotated": lambda operator: _play(operator, "rotate-gossip-keys"),
    "site at the end": _site_again,
}


def _play(operator: Operator, name: str) -> None:
    operator.play(name)
