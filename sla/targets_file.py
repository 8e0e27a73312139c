"""Reads `targets.toml` into `sla.targets`.

Rule 1: whatever a file says wrong is a UsageError of one line that names the file, the table and what to write.
Rule 2: a file that leaves a key out means its default; unknown keys are refused, so that a typing error is no default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final

from georelay.limits import TOPIC_NAME_CHARS_MAX
from georelay.trace.kinds import Operation, Stage
from sla.errors import UsageError
from sla.report.model import TargetKind
from sla.targets import (
    ARROW,
    GROUP_STAGES,
    MINUTES_OF_UNIT,
    NO_GROUP,
    BurnRule,
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Scope,
    Target,
    Targets,
    ThroughputTarget,
    duration_text,
)

DEFAULT_NAME: Final = "targets.toml"  # beside this module, which may be in a zip that Spark was given
TARGETS_SCHEMA_VERSION: Final = 1
FILE_BYTES_MAX: Final = 64 * 1024
TARGETS_MAX: Final = 50
BURN_WINDOWS_MAX: Final = 10
SCOPE_MAX: Final = 500
NAMES_MAX: Final = 100  # of topics, of groups
GROUP_CHARS_MAX: Final = 255  # as brokers allow
SHOWN_CHARS_MAX: Final = 200
BURN_MINUTES_MAX: Final = 31 * 24 * 60
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,20}")
_TOPIC: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_CHARS_MAX}}}")  # as brokers allow
_DURATION: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_KINDS: Final[Mapping[str, type[Target]]] = {
    "latency": LatencyTarget,
    "throughput": ThroughputTarget,
    "integrity": IntegrityTarget,
    "requests": RequestsTarget,
    "probes": ProbesTarget,
    "minutes": MinutesTarget,
}
_PAIR_KINDS: Final = frozenset({TargetKind.LATENCY, TargetKind.PROBES, TargetKind.MINUTES})


def load_targets(path: Path | None = None) -> Targets:
    """Read a targets file; without a path the one that comes with the program.

    Raises:
        UsageError: the file is not there or says something that is no target.
    """
    if path is None:
        ours = resources.files("sla").joinpath(DEFAULT_NAME)
        return parse_targets(ours.read_text(encoding="utf-8"), source=DEFAULT_NAME)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not readable as a targets file: {error}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: larger than {FILE_BYTES_MAX} bytes: no targets file")
    return parse_targets(text, source=path.name)


def parse_targets(text: str, *, source: str) -> Targets:
    """Read the text of a targets file.

    Raises:
        UsageError: see load_targets.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of numbers with too many digits, and of brackets in brackets, too
        raise UsageError(f"{source}: no TOML: {error}") from error
    whole = _Table(document, where=source)
    version = whole.whole_number("schema_version", low=1)
    if version != TARGETS_SCHEMA_VERSION:
        raise UsageError(f"{source}: schema_version {version} is not known; write {TARGETS_SCHEMA_VERSION}")
    tables = whole.tables("target", most=TARGETS_MAX)
    targets = tuple(_target(table) for table in tables)
    names = [target.name for target in targets]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{source}: two targets are called {twice[0]!r}; each needs a name of its own")
    if not targets:
        raise UsageError(f"{source}: no [[target]]; there would be nothing to judge")
    judging = whole.table("judging")
    burn = whole.table("burn")
    read = Targets(
        targets=targets,
        burn_rules=tuple(_burn_rule(table) for table in burn.tables("window", most=BURN_WINDOWS_MAX)),
        burn_events_min=burn.whole_number("events_min", default=100, low=1),
        confidence=judging.number("confidence", default=0.95, low=0.5, high=0.999999),
        source=source,
    )
    for table in (whole, judging, burn):
        table.refuse_rest()
    _refuse_equal_rules(read.burn_rules, source)
    return read


def _refuse_equal_rules(rules: tuple[BurnRule, ...], source: str) -> None:
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise UsageError(f"{source}: [[burn.window]]: two have the same windows")


def _target(table: _Table) -> Target:
    name = table.text("name", check=_NAME.fullmatch, hint="up to 40 of a-z, 0-9 and -")
    table.where = f"{table.where} ({name})"
    kind = _KINDS[table.choice("kind", tuple(_KINDS))]
    values: dict[str, Any] = {"name": name}
    for item in fields(kind):
        if item.name == "name":
            continue
        assert item.default is not MISSING, item.name
        key = "required" if item.name == "is_required" else item.name
        if key in table.values:
            values[item.name] = _READERS[item.name](table, key, kind.kind)
    table.refuse_rest()
    target = kind(**values)
    if isinstance(target, LatencyTarget) and target.groups and target.stage not in GROUP_STAGES:
        text = f"{target.stage.value} is of no group; leave groups out, or write deliver or total"
        raise UsageError(f"{table.where}: groups with stage = {target.stage.value!r}: {text}")
    return target


def _scope(table: _Table, key: str, kind: TargetKind) -> Scope:
    value = table.values.pop(key)
    words = ("all", "intra", "inter") if kind in _PAIR_KINDS else ("all",)
    what = 'pairs such as "us -> eu"' if kind in _PAIR_KINDS else "regions"
    if isinstance(value, str) and value in words:
        return Scope(word=value)
    if not isinstance(value, list) or not 0 < len(value) <= SCOPE_MAX:
        raise table.wrong(key, value, f"{', '.join(words)} or a list of {what}")
    names = frozenset(_subject(table, key, item, kind, what) for item in value)
    return Scope(word="named", names=names)


def _subject(table: _Table, key: str, item: object, kind: TargetKind, what: str) -> str:
    regions = [part.strip() for part in item.split("->")] if isinstance(item, str) else []
    if len(regions) != (2 if kind in _PAIR_KINDS else 1) or not all(map(_REGION.fullmatch, regions)):
        raise table.wrong(key, item, f"a list of {what}")
    return ARROW.join(regions)


def _topics(table: _Table, key: str, _: TargetKind) -> frozenset[str]:
    hint = f'all or a list of topics, up to {NAMES_MAX} names of letters, digits, ".", "_" and "-"'
    return _names(table, key, is_name=lambda name: _TOPIC.fullmatch(name) is not None, hint=hint)


def _groups(table: _Table, key: str, _: TargetKind) -> frozenset[str]:
    hint = f'all or a list of groups, up to {NAMES_MAX} names; "{NO_GROUP}" are the consumers without one'
    names = _names(table, key, is_name=lambda name: 0 < len(name) <= GROUP_CHARS_MAX, hint=hint)
    return frozenset("" if name == NO_GROUP else name for name in names)


def _names(table: _Table, key: str, *, is_name: Callable[[str], bool], hint: str) -> frozenset[str]:
    """Return the names of a list; none for the word that means all of them."""
    value = table.values.pop(key)
    if value == "all":
        return frozenset()
    if not isinstance(value, list) or not 0 < len(value) <= NAMES_MAX:
        raise table.wrong(key, value, hint)
    for item in value:
        if not isinstance(item, str) or not is_name(item):
            raise table.wrong(key, item, hint)
    return frozenset(value)


def _operations(table: _Table, key: str, _: TargetKind) -> frozenset[Operation]:
    value = table.values.pop(key)
    known = {operation.value: operation for operation in Operation}
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item in known for item in value):
        raise table.wrong(key, value, f"a list of {', '.join(known)}")
    return frozenset(known[item] for item in value)


def _stage(table: _Table, key: str, _: TargetKind) -> Stage:
    return Stage(table.choice(key, tuple(stage.value for stage in Stage)))


def _number(low: float, high: float, *, is_open: bool = False) -> Callable[[_Table, str, TargetKind], float]:
    return lambda table, key, _: table.number(key, low=low, high=high, is_open=is_open)


def _count(table: _Table, key: str, _: TargetKind) -> int:
    return table.whole_number(key, low=0)


_READERS: Final[Mapping[str, Callable[[_Table, str, TargetKind], Any]]] = {
    "objective": _number(0, 1, is_open=True),
    "threshold_ms": _number(0.001, 600_000),
    "stage": _stage,
    "scope": _scope,
    "topics": _topics,
    "groups": _groups,
    "own_limit_margin_ms": _number(0, 600_000),
    "local_ms_max": _number(0, 600_000),
    "is_required": lambda table, key, _: table.flag(key),
    "records_per_s": _number(1, 1e9),
    "offered_margin": _number(1, 100),
    "lost_max": _count,
    "duplicates_max": _count,
    "reordered_max": _count,
    "source": lambda table, key, _: table.choice(key, ("broker", "gateway")),
    "operations": _operations,
    "down_share": _number(0.000001, 1),
    "coverage_min": _number(0, 1),
}


def _burn_rule(table: _Table) -> BurnRule:
    rule = BurnRule(
        long_minutes=table.duration("long"),
        short_minutes=table.duration("short"),
        rate=table.number("rate", low=0, high=1e6, is_open=True),
        severity=table.choice("severity", ("page", "ticket")),
    )
    table.refuse_rest()
    if rule.short_minutes >= rule.long_minutes:
        raise UsageError(f"{table.where}: the short window must be shorter than the long one")
    return rule


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than some thousand digits
        return "a number that is too long to show"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."


class _Table:
    """One table of the file; keys are taken out as they are read, what is left is unknown."""

    def __init__(self, values: Mapping[str, Any], *, where: str) -> None:
        self.values = dict(values)
        self.where = where

    def wrong(self, key: str, value: object, hint: str) -> UsageError:
        return UsageError(f"{self.where}: {key} = {_shown(value)}: write {hint}")

    def refuse_rest(self) -> None:
        for key in self.values:
            raise UsageError(f"{self.where}: the key {key!r} is not known here; sla/targets.toml has every key")

    def _take(self, key: str, default: object) -> object:
        if key not in self.values and default is None:
            raise UsageError(f"{self.where}: {key} is missing")
        return self.values.pop(key, default)

    def number(
        self, key: str, *, low: float, high: float, default: float | None = None, is_open: bool = False
    ) -> float:
        value = self._take(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and (low < value < high if is_open else low <= value <= high):  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        raise self.wrong(
            key, value, f"a number {'between' if is_open else 'from'} {low:g} {'and' if is_open else 'to'} {high:g}"
        )

    def whole_number(self, key: str, *, low: int, default: int | None = None) -> int:
        value = self._take(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value < 1 << 53:
            return value
        raise self.wrong(key, value, f"a whole number from {low} on")

    def flag(self, key: str) -> bool:
        value = self._take(key, None)
        if isinstance(value, bool):
            return value
        raise self.wrong(key, value, "true or false")

    def text(self, key: str, *, check: Callable[[str], object], hint: str) -> str:
        value = self._take(key, None)
        if isinstance(value, str) and check(value):
            return value
        raise self.wrong(key, value, hint)

    def choice(self, key: str, words: tuple[str, ...]) -> str:
        return self.text(key, check=words.__contains__, hint=" or ".join((", ".join(words[:-1]), words[-1])))

    def duration(self, key: str) -> int:
        value = self.text(key, check=_DURATION.fullmatch, hint="a duration such as 5m, 6h or 3d")
        found = _DURATION.fullmatch(value)
        assert found is not None
        minutes = int(found[1]) * MINUTES_OF_UNIT[found[2]]
        if minutes > BURN_MINUTES_MAX:
            raise self.wrong(key, value, f"at most {duration_text(BURN_MINUTES_MAX)}")
        return minutes

    def table(self, key: str) -> _Table:
        value = self.values.pop(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, f"a table [{key}]")
        return _Table(value, where=f"{self.where}: [{key}]")

    def tables(self, key: str, *, most: int) -> list[_Table]:
        value = self.values.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, value, f"tables [[{key}]]")
        if len(value) > most:
            raise UsageError(f"{self.where}: {len(value)} tables [[{key}]]; at most {most}")
        return [_Table(item, where=f"{self.where}: {key} {number}") for number, item in enumerate(value, 1)]
