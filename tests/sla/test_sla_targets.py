"""targets.toml: what it says, what its defaults are, and what is refused in one line; no Spark."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from georelay.trace.kinds import Operation, Stage
from sla.errors import UsageError
from sla.report.model import TargetKind
from sla.targets import (
    BurnRule,
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Scope,
    ThroughputTarget,
    duration_text,
)
from sla.targets_file import load_targets, parse_targets
from tests.tiers import in_one_test

HEAD = "schema_version = 1\n"
LATENCY = '[[target]]\nname = "fast"\nkind = "latency"\n'


def test_the_file_that_comes_with_the_program_says_every_default() -> None:
    read = load_targets()
    assert read.targets == (
        LatencyTarget(name="latency"),
        ThroughputTarget(name="throughput"),
        IntegrityTarget(name="integrity"),
        RequestsTarget(name="requests"),
        RequestsTarget(name="gateway-requests", source="gateway"),
        ProbesTarget(name="probes"),
        MinutesTarget(name="minutes"),
    )
    assert read.burn_rules == (
        BurnRule(long_minutes=60, short_minutes=5, rate=14.4, severity="page"),
        BurnRule(long_minutes=360, short_minutes=30, rate=6, severity="page"),
        BurnRule(long_minutes=4_320, short_minutes=360, rate=1, severity="ticket"),
    )
    assert [rule.name for rule in read.burn_rules] == ["1h+5m", "6h+30m", "3d+6h"]
    assert (read.burn_events_min, read.confidence, read.source) == (100, 0.95, "targets.toml")


def test_a_file_may_say_everything_else() -> None:
    text = f"""{HEAD}
    [[target]]
    name = "near"
    kind = "latency"
    objective = 0.999
    threshold_ms = 5
    stage = "deliver"
    scope = ["us -> eu", "eu->eu"]
    topics = ["orders", "a.b-c_D"]
    groups = ["billing", "-"]
    required = false
    [[target]]
    name = "writes"
    kind = "requests"
    operations = ["publish"]
    scope = ["eu"]
    [judging]
    confidence = 0.99
    [burn]
    events_min = 7
    [[burn.window]]
    long = "90m"
    short = "1m"
    rate = 3
    severity = "ticket"
    """
    read = parse_targets(text, source="own.toml")
    assert read.targets == (
        LatencyTarget(
            name="near",
            objective=0.999,
            threshold_ms=5.0,
            stage=Stage.DELIVER,
            scope=Scope(word="named", names=frozenset({"us -> eu", "eu -> eu"})),
            topics=frozenset({"orders", "a.b-c_D"}),
            groups=frozenset({"billing", ""}),
            is_required=False,
        ),
        RequestsTarget(
            name="writes", operations=frozenset({Operation.PUBLISH}), scope=Scope(word="named", names=frozenset({"eu"}))
        ),
    )
    assert read.burn_rules == (BurnRule(long_minutes=90, short_minutes=1, rate=3.0, severity="ticket"),)
    assert (read.burn_events_min, read.confidence) == (7, 0.99)


@in_one_test(
    ("text", "words"),
    [
        ("", "schema_version is missing"),
        ("schema_version = 2", "schema_version 2 is not known; write 1"),
        (HEAD, "no [[target]]"),
        ("schema_version = [", "no TOML"),
        ("schema_version = " + "[" * 3_000, "no TOML"),
        ("schema_version = " + "9" * 5_000, "no TOML"),
        (
            "schema_version = 0x" + "f" * 20_000,
            "schema_version = a number that is too long to show: write a whole number",
        ),
        (f'schema_version = "{"x" * 20_000}"', "xxx...: write a whole number"),
        (HEAD + "colour = 1\n" + LATENCY, "the key 'colour' is not known here"),
        (HEAD + '[[target]]\nkind = "latency"', "target 1: name is missing"),
        (HEAD + '[[target]]\nname = "A b"\nkind = "latency"', "name = 'A b': write up to 40 of a-z, 0-9 and -"),
        (
            HEAD + '[[target]]\nname = "x"\nkind = "speed"',
            "target 1 (x): kind = 'speed': write latency, throughput, integrity, requests, probes or minutes",
        ),
        (HEAD + LATENCY + "objectiv = 0.9", "target 1 (fast): the key 'objectiv' is not known here"),
        (HEAD + LATENCY + "objective = 1", "objective = 1: write a number between 0 and 1"),
        (HEAD + LATENCY + "objective = 99", "objective = 99: write a number between 0 and 1"),
        (HEAD + LATENCY + "objective = nan", "objective = nan: write a number between 0 and 1"),
        (HEAD + LATENCY + "objective = true", "objective = True: write a number between 0 and 1"),
        (HEAD + LATENCY + "threshold_ms = 0", "threshold_ms = 0: write a number from 0.001 to 600000"),
        (HEAD + LATENCY + "down_share = 0.1", "the key 'down_share' is not known here"),
        (HEAD + LATENCY + 'stage = "all"', "stage = 'all': write commit, replicate, deliver or total"),
        (HEAD + LATENCY + 'scope = "near"', "scope = 'near': write all, intra, inter or a list of pairs"),
        (HEAD + LATENCY + 'scope = ["us"]', "scope = 'us': write a list of pairs such as \"us -> eu\""),
        (HEAD + LATENCY + "scope = []", "scope = []: write all"),
        (HEAD + LATENCY + 'topics = "orders"', "topics = 'orders': write all or a list of topics, up to 100 names of"),
        (HEAD + LATENCY + "topics = []", "topics = []: write all or a list of topics"),
        (HEAD + LATENCY + 'topics = ["a b"]', "topics = 'a b': write all or a list of topics"),
        (HEAD + LATENCY + f'topics = ["{"x" * 250}"]', "xxx...: write all or a list of topics"),
        (HEAD + LATENCY + f"topics = {['t'] * 101}", "write all or a list of topics, up to 100 names"),
        (HEAD + LATENCY + 'groups = [""]', "groups = '': write all or a list of groups, up to 100 names; \"-\" are"),
        (HEAD + LATENCY + f'groups = ["{"x" * 256}"]', "xxx...: write all or a list of groups"),
        (
            HEAD + LATENCY + 'groups = ["billing"]\nstage = "commit"',
            "target 1 (fast): groups with stage = 'commit': commit is of no group; leave groups out, or write deliver",
        ),
        (HEAD + '[[target]]\nname = "p"\nkind = "probes"\ntopics = ["a"]', "the key 'topics' is not known here"),
        (HEAD + LATENCY + "required = 1", "required = 1: write true or false"),
        (HEAD + '[[target]]\nname = "i"\nkind = "integrity"\nlost_max = -1', "lost_max = -1: write a whole number"),
        (HEAD + '[[target]]\nname = "r"\nkind = "requests"\noperations = ["get"]', "a list of publish, consume"),
        (HEAD + LATENCY + LATENCY, "two targets are called 'fast'"),
        (HEAD + "target = 3", "target = 3: write tables [[target]]"),
        (HEAD + "judging = 3\n" + LATENCY, "judging = 3: write a table [judging]"),
        (HEAD + LATENCY + "[judging]\nconfidence = 1", "confidence = 1: write a number from 0.5 to 0.999999"),
        (
            HEAD + LATENCY + '[[burn.window]]\nlong = "5m"\nshort = "1h"\nrate = 1\nseverity = "page"',
            "burn]: window 1: the short window must be shorter",
        ),
        (
            HEAD + LATENCY + '[[burn.window]]\nlong = "60d"\nshort = "1h"\nrate = 1\nseverity = "page"',
            "long = '60d': write at most 31d",
        ),
        (
            HEAD + LATENCY + '[[burn.window]]\nlong = "1 hour"\nshort = "5m"\nrate = 1\nseverity = "page"',
            "long = '1 hour': write a duration such as 5m, 6h or 3d",
        ),
        (
            HEAD + LATENCY + '[[burn.window]]\nlong = "1h"\nshort = "5m"\nrate = 1\nseverity = "page"\n' * 2,
            "two have the same windows",
        ),
        (HEAD + LATENCY + "[[burn.window]]\n" * 11, "11 tables [[window]]; at most 10"),
    ],
)
def test_what_is_no_target_is_refused_in_one_line_that_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_targets(text, source="own.toml")
    message = str(caught.value)
    assert words in message
    assert message.startswith("own.toml: ")
    assert "\n" not in message


def test_a_file_that_is_no_targets_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not readable as a targets file"):
        load_targets(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not readable as a targets file"):
        load_targets(tmp_path / "binary.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * 70_000)
    with pytest.raises(UsageError, match="larger than 65536 bytes"):
        load_targets(tmp_path / "large.toml")


def test_of_what_has_no_size_no_more_is_read_than_a_targets_file_may_have(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb") as file:
            file.write(b"#" * 300_000)

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(UsageError, match="larger than 65536 bytes"):
        load_targets(pipe)
    writer.join(10)
    assert not writer.is_alive()


def test_scopes_mean_pairs_and_regions() -> None:
    named = Scope(word="named", names=frozenset({"us -> eu"}))
    meant = [
        [scope.has_pair(*pair) for pair in (("us", "eu"), ("eu", "us"), ("eu", "eu"))]
        for scope in (Scope(), Scope(word="intra"), Scope(word="inter"), named)
    ]
    assert meant == [[True, True, True], [False, False, True], [True, True, False], [True, False, False]]
    assert Scope().has_region("eu")
    assert not Scope(word="named", names=frozenset({"us"})).has_region("eu")


@pytest.mark.parametrize(("minutes", "text"), [(5, "5m"), (60, "1h"), (90, "90m"), (1_440, "1d"), (1_500, "25h")])
def test_durations_are_printed_in_their_largest_whole_unit(minutes: int, text: str) -> None:
    assert duration_text(minutes) == text


def test_the_document_has_every_key_with_its_default() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "docs/sla/targets.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    told = {(row[0], row[1]): row[2] for row in cells if row[0] in {kind.value for kind in TargetKind}}
    known = {}
    for target in load_targets().targets[:4] + load_targets().targets[5:]:
        for item in fields(target):
            if item.name != "name":
                key = "required" if item.name == "is_required" else item.name
                known[target.kind.value, key] = _shown(getattr(target, item.name))
    assert told == known


def _shown(value: object) -> str:
    if value == frozenset():
        return "all"
    if isinstance(value, frozenset):
        return ", ".join(operation.value for operation in Operation if operation in value)
    if isinstance(value, bool):
        return str(value).lower()
    return value.value if isinstance(value, Stage) else str(value)
