"""The steps of the lab, in their order: each a thing that an operator does, and what must be true afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from deploy.lab.hosts import Host
from deploy.lab.layout import HOME, JOINS, LATER, RETIRES, SECOND
from deploy.lab.needs import LabError, run
from deploy.lab.operator import TRACES_TO, Operator, changes
from deploy.lab.table import Step, Table

LOST: Final = f"broker-2.{HOME}"
FOUND_S: Final = 60  # until a command or records go on without a region
CLOSED_S: Final = 120  # until a process that just started has closed its first file of traces
BACK_S: Final = 240  # until a region that was lost has everything again
TOO_FULL_MIB: Final = 3_000  # of a disk of 4 GiB
Act: TypeAlias = Callable[[Operator], None]


def known_steps(regions: int) -> dict[str, Act]:
    """Return the steps that a lab of so many regions has, in their order."""
    return {**STEPS, **(REGION_STEPS if regions > 1 else {}), **LAST_STEPS}


def asked(lines: Iterable[str], *, regions: int) -> Iterator[tuple[str, Act]]:
    """Yield the steps that lines name, as they come; a line that names none is told so."""
    for line in lines:
        try:
            yield from chosen(line, regions=regions).items() if line.strip() else ()
        except LabError as error:
            print(error, flush=True)


def chosen(names: str, *, regions: int) -> Mapping[str, Act]:
    """Return the steps that are named, with commas, in the order of the lab; all of this number of regions for "".

    Raises:
        LabError: there is no such step.
    """
    steps = known_steps(regions)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in steps]
    if unknown:
        raise LabError(f"no step is called {', '.join(unknown)}; there are: {', '.join(steps)}")
    return {name: act for name, act in steps.items() if not wanted or name in wanted}


def carry_out(operator: Operator, table: Table, *, rate: int, steps: Iterable[tuple[str, Act]]) -> None:
    """Set the mesh up, carry out the steps under load, and fill the table.

    Raises:
        LabError: the clients said no verdict.
    """
    for name, act in SET_UP.items():
        _step(operator, table, name, act)
        if table.steps[-1].fault:
            return
    operator.start_load(rate)
    time.sleep(5)
    for name, act in steps:
        _step(operator, table, name, act)
        time.sleep(2)
    table.acknowledged_at, table.verdict = operator.end_load()
    table.finished = True


def _step(operator: Operator, table: Table, name: str, act: Act) -> None:
    begin, fault, is_first = time.time(), "", name in SET_UP
    brokers = operator.brokers
    with operator.watching() as seen:
        try:
            act(operator)
        except LabError as error:
            fault = str(error)
    worst = "" if is_first or not seen else f"{min(seen)} of {len(brokers)}"
    table.steps.append(Step(name=name, begin=begin, end=time.time(), voters_worst=worst, fault=fault))
    print(f"{name}: {time.time() - begin:.1f} s, {fault or 'as it should'}", flush=True)


def _interrupted(operator: Operator) -> None:
    operator.play("site", interrupt_at="TASK [release : It is installed whole")


def _site(operator: Operator) -> None:
    operator.play("site")


def _site_again(operator: Operator) -> None:
    _unchanged(operator, "site")


def _unchanged(operator: Operator, play: str, **variables: str) -> None:
    """Run a play that has nothing to do."""
    count = changes(operator.play(play, **variables))
    if count:
        raise LabError(f"{play}.yml changed {count} things although all was done")


def _refused(operator: Operator, play: str, words: str, **variables: str) -> None:
    """Run a play that has to say no, with `words` in its one line."""
    try:
        operator.play(play, **variables)
    except LabError as error:
        if words not in str(error):
            raise
        print(f"  {error}", flush=True)
    else:
        raise LabError(f"{play}.yml went on")


def _upgrade_interrupted(operator: Operator) -> None:
    good, operator.release = operator.release, operator.releases["next"]
    try:
        operator.play("rolling-upgrade", interrupt_at="TASK [It is started again; SIGTERM hands leadership over")
    finally:
        operator.release = good
    operator.await_records(FOUND_S)


def _upgrade(operator: Operator) -> None:
    operator.release = operator.releases["next"]
    operator.play("rolling-upgrade")
    _unchanged(operator, "rolling-upgrade")


def _broken(operator: Operator) -> None:
    good, operator.release = operator.release, operator.releases["broken"]
    try:
        _refused(operator, "rolling-upgrade", "did not become ready")
    finally:
        operator.release = good
    operator.play("health")


def _add(operator: Operator) -> None:
    operator.join(LATER)
    operator.play("add-brokers", brokers=",".join(LATER))
    _unchanged(operator, "add-brokers", brokers=",".join(LATER))


def _remove(operator: Operator) -> None:
    operator.play("remove-broker", broker=LATER[-1])
    operator.members.remove(LATER[-1])
    operator.play("health")


def _lost_disk(operator: Operator) -> None:
    host = operator.hosts[LOST]
    host.kill()
    host.replace_disk()
    host.boot()
    host.wait_booted(without="var-lib-georelay.mount")
    operator.play("replace-broker", broker=LOST)


def _reboot(operator: Operator) -> None:
    host = operator.hosts[f"broker-1.{HOME}"]
    host.stop()
    host.boot()
    host.wait_booted()
    _healthy(operator)


def _healthy(operator: Operator) -> None:
    """Wait until the mesh has no trouble, and let the play say so."""
    deadline = time.monotonic() + BACK_S
    while "nothing is out of order" not in operator.await_verb("status", wait_s=BACK_S):
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    operator.play("health", georelay_wait_s="60")


def _stop_start(operator: Operator) -> None:
    _refused(operator, "stop-mesh", "say -e confirm=shop")
    operator.play("stop-mesh", confirm="shop")
    _unchanged(operator, "stop-mesh", confirm="shop")
    operator.play("start-mesh")
    operator.await_records(FOUND_S)
    _unchanged(operator, "start-mesh")


def _logs(operator: Operator) -> None:
    into = operator.scratch / "logs"
    operator.play("fetch-logs", into=str(into), since="-2h")
    short = [name for name in operator.members if len((into / f"{name}.log").read_text().splitlines()) < 5]
    if short:
        raise LabError(f"no log of {', '.join(short)}")


def _traces(operator: Operator) -> None:
    for name in operator.members:
        host, unit = operator.hosts[name], f"georelay-traces@{name.partition('-')[0]}"
        if host.inside(["systemctl", "is-active", f"{unit}.timer"]).stdout.strip() != "active":
            raise LabError(f"{name}: {unit}.timer is not active")
        deadline = time.monotonic() + CLOSED_S
        while not _ships(host, unit):
            if time.monotonic() > deadline:
                raise LabError(f"{name}: nothing was shipped to {TRACES_TO}")
            time.sleep(1)


def _ships(host: Host, unit: str) -> bool:
    """Ship what is closed, and return whether anything has arrived. Raises LabError when the unit fails."""
    if host.inside(["systemctl", "start", f"{unit}.service"]).returncode != 0:
        log = host.inside(["journalctl", "--unit", f"{unit}.service", "--output", "cat", "--lines", "3"]).stdout
        raise LabError(f"{host.plan.name}: {' '.join(log.split())}")
    return bool(host.inside(["find", TRACES_TO, "-name", "*.parquet"]).stdout)


def _unreachable(operator: Operator) -> None:
    operator.hosts[LOST].cut_off(cut=True)
    try:
        _refused(operator, "site", f"{LOST}: ")
    finally:
        operator.hosts[LOST].cut_off(cut=False)
    _healthy(operator)


def _full_disk(operator: Operator) -> None:
    host, file = operator.hosts[LOST], "/var/lib/georelay/of-somebody-else"
    host.inside(["fallocate", "--length", f"{TOO_FULL_MIB}MiB", file])
    try:
        _refused(operator, "site", f"{LOST}: ")
    finally:
        host.inside(["rm", file])


def _wrong_keys(operator: Operator) -> None:
    wrong = operator.scratch / "wrong-key"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], "no SSH key")
    ssh = {"ansible_ssh_private_key_file": str(wrong), "ansible_ssh_args": "-o ControlPath=none -o IdentitiesOnly=yes"}
    _refused(operator, "site", "Permission denied", **ssh)
    _refused(operator, "health", "georelay status: ", georelay_password=f"admin:{wrong.name}")


def _home_lost(operator: Operator) -> None:
    for host in operator.of_region(HOME):
        host.kill()
    operator.asker = f"gateway-1.{SECOND}"
    operator.await_verb("home", "failover", "--region", HOME, wait_s=FOUND_S)
    operator.await_records(FOUND_S)


def _home_back(operator: Operator) -> None:
    for host in operator.of_region(HOME):
        host.boot()
        host.wait_booted()  # one after the other: units of hosts that boot at once fail now and then
    _healthy(operator)
    operator.asker = f"gateway-1.{HOME}"
    operator.await_verb("home", "move", "orders", HOME, wait_s=FOUND_S)
    operator.await_records(FOUND_S)
    _healthy(operator)


def _region_added(operator: Operator) -> None:
    operator.join(name for name, host in operator.hosts.items() if host.plan.region == JOINS)
    operator.play("add-region", region=JOINS)
    _unchanged(operator, "add-region", region=JOINS)


def _region_retired(operator: Operator) -> None:
    _refused(operator, "retire-region", "cannot be retired", region=HOME)
    operator.play("retire-region", region=RETIRES)
    _unchanged(operator, "retire-region", region=RETIRES)
    for host in operator.of_region(RETIRES):
        operator.members.remove(host.plan.name)
        host.kill()
    operator.play("health")


def _certificates(operator: Operator) -> None:
    operator.play("new-authority")
    operator.await_records(FOUND_S)  # of clients that were given it
    operator.play("rotate-certificates")
    operator.await_records(FOUND_S)


def _play(name: str) -> Act:
    def act(operator: Operator) -> None:
        operator.play(name)

    return act


SET_UP: Final[dict[str, Act]] = {"site, interrupted": _interrupted, "site, bare hosts": _site}
STEPS: Final[dict[str, Act]] = {
    "site again": _site_again,
    "upgrade interrupted": _upgrade_interrupted,
    "rolling upgrade": _upgrade,
    "broken release": _broken,
    "two brokers added": _add,
    "one removed": _remove,
    "lost disk replaced": _lost_disk,
    "host rebooted": _reboot,
    "certificates rotated": _certificates,
    "gossip keys rotated": _play("rotate-gossip-keys"),
    "mesh stopped and started": _stop_start,
    "logs fetched": _logs,
    "traces shipped": _traces,
    "host unreachable": _unreachable,
    "disk full": _full_disk,
    "wrong keys": _wrong_keys,
}
REGION_STEPS: Final[dict[str, Act]] = {
    "home region lost": _home_lost,
    "home region back": _home_back,
    "region added": _region_added,
    "region retired": _region_retired,
}
LAST_STEPS: Final[dict[str, Act]] = {"site at the end": _site_again}
