"""Campaign files: TOML that follows schema.json. What is wrong is one line with the place and the allowed values.

Rule 1: a file is refused as a whole; the first mistake in the order of the file is told.
Rule 2: tomllib gives no lines, so `lines_of` finds them: of tables by their heads, of keys by their names.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Final

import jsonschema

from loadtest.load.campaign import (
    GROUP_MEMBER,
    MOVING_READER,
    QUEUE,
    QUEUE_CONSUMER,
    REGIONS,
    TRANSACTIONS,
    TRANSFORMER,
    Campaign,
    Checks,
    Fault,
    Generator,
    Programs,
    Readers,
    Stage,
    Target,
    Topic,
    Topology,
    Users,
)
from loadtest.load.file_kinds import FILE_KINDS
from loadtest.toml_core import toml_of

FOLDER: Final = Path(__file__).resolve().parent.parent / "campaigns"
SCHEMA: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
VALIDATOR: Final = jsonschema.Draft202012Validator(SCHEMA)
SHOWN_CHARS_MAX: Final = 60
CANNOT_SEE: Final = ("aiokafka", "native", "websocket", "text", "group", "queue")  # how far markers reach
SUBSCRIBED_MAX: Final = 64  # partitions of one subscription over a WebSocket
TEXT_BYTES_MAX: Final = 200_000
AMOUNTS: Final = {
    **dict.fromkeys(("link-slow", "disk-slow", "clock-step"), "ms"),
    "link-loss": "percent",
    "link-cap": "mbit",
    "flood": "per_s",
}
CLIENT_FAULTS: Final = ("kill-client", "client-joins", "client-leaves")
UPGRADE: Final = "upgrade"
RUNNING: Final = ("endpoints", "inventory")  # kinds of meshes that nobody starts
OF_A_RUNNING_MESH: Final = {  # which kinds
    **dict.fromkeys(("data", "bed"), ("endpoints",)),
    **dict.fromkeys(("break_command", "mend_command"), RUNNING),
    "inventory": ("inventory",),
}
IS_STARTED: Final = "needs a mesh that is started for it: topology.kind up or wan"
COOPERATIVE: Final = "cooperative-sticky"
IN_A_BED: Final = ("link-slow", "link-one-way", "link-loss", "link-cap")
PEERS: Final = ("peer-cut", "peer-blackhole", "peer-mute", "peer-deaf", "peer-flap")
BREAKABLE: Final = ("disk-slow", "disk-full", "clock-step", "power-cut", "disk-lies", *PEERS)  # by files it reads
_HEAD: Final = re.compile(r"^\s*(\[\[?)\s*([\w.-]+)\s*\]\]?")
_KEY: Final = re.compile(r"^\s*([\w-]+)\s*(?:\.\s*[\w-]+\s*)*=")
_REGION: Final = re.compile(r"[a-z][a-z0-9]{0,15}")  # of a mesh that is started: links are named with hyphens
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
TIMES: Final = {"settle", "stay", "away", "at", "for", "warm_up"}  # keys that are durations
TABLES: Final[dict[str, Any]] = {"target": Target, "topology": Topology, "checks": Checks, "generator": Generator}
ROWS: Final[dict[str, Any]] = {"topics": Topic, "users": Users, "readers": Readers, "programs": Programs}
Where = tuple[str | int, ...]


class CampaignError(ValueError):
    """A campaign that cannot be run; the text is one line that says where and what is allowed."""


def shipped() -> list[Path]:
    """Return the campaigns that come with georelay."""
    return sorted(FOLDER.glob("*.toml"))


def find(name: str) -> Path:
    """Return the file of a shipped campaign, or the file itself. Raises CampaignError."""
    path = Path(name)
    if path.suffix == ".toml":
        return path
    if (found := FOLDER / f"{name}.toml").is_file():
        return found
    known = ", ".join(path.stem for path in shipped())
    raise CampaignError(f"there is no campaign {name!r}: give a .toml file, or one of {known}")


def load(path: Path) -> Campaign:
    """Return the campaign of a file. Raises CampaignError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CampaignError(f"{path}: cannot be read: {error}") from error
    return parse(text, name=path.stem, place=path.name)


def parse(text: str, *, name: str, place: str) -> Campaign:
    """Return the campaign of a text.

    Args:
        place: how errors name the file.

    Raises:
        CampaignError: one line.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CampaignError(f"{place}: not TOML: {error}") from error
    lines = lines_of(text)
    errors = [(error_path(error), _told(error)) for error in VALIDATOR.iter_errors(document)]
    if not errors:
        errors = list(_contradictions(document))
    if errors:
        where, said = min(errors, key=lambda row: (line_at(lines, row[0]), row[1]))
        raise CampaignError(f"{place}:{line_at(lines, where)}: {dotted(where)}{said}")
    return _made(name, document)


def shortened(text: str, seconds: float) -> str:
    """Return the text of a right campaign with a load of so many seconds: stages and moments of faults in proportion.

    How long a fault holds stays, unless it would hold into the next one, or beyond the load, and did not before: then
    it is in proportion, too.
    """
    document = tomllib.loads(text)
    stages, faults = document["stages"], document.get("faults", [])
    whole_s = sum(seconds_of(stage["for"]) for stage in stages)
    factor = seconds / whole_s
    moments = sorted([whole_s, *(at_s for fault in faults for at_s in _moments_of(fault))])
    changed = [(stage, "for") for stage in stages]
    changed += [(fault, key) for fault in faults for key in ("at", "every") if key in fault]
    changed += [(fault, "for") for fault in faults if "for" in fault and not _holds_as_long(fault, moments, factor)]
    for row, key in changed:
        row[key] = f"{seconds_of(row[key]) * factor:.2f}s"
    return toml_of(document)


def scaled(text: str, share: float) -> str:
    """Return the text of a right campaign that offers this share of its records, and asks for no more than that.

    A partition that gets fewer of them may be silent for longer.
    """
    document = tomllib.loads(text)
    rows = [(stage, "rate", share) for stage in document["stages"]]
    rows.append((document.get("target", {}), "records_per_s_min", share))
    rows.append((document.get("checks", {}), "silence_s_max", max(1.0, 1 / share)))
    for row, key, factor in rows:
        if key in row:
            row[key] *= factor
    return toml_of(document)


def seeded(text: str, seed: int) -> str:
    """Return the text of a right campaign with another seed."""
    return toml_of(tomllib.loads(text) | {"seed": seed})


def begun_with(text: str, commit: str) -> str:
    """Return the text of a right campaign of upgrades that begins with another commit. Raises CampaignError."""
    document = tomllib.loads(text)
    if "commit" not in document.get("topology", {}):
        raise CampaignError("topology.commit: is not there, so no older version is upgraded: leave --commit away")
    document["topology"]["commit"] = commit
    return toml_of(document)


def _moments_of(fault: Mapping[str, Any]) -> list[float]:
    every_s = seconds_of(fault.get("every", "0s"))
    return [seconds_of(fault["at"]) + number * every_s for number in range(fault.get("times", 1))]


def _holds_as_long(fault: dict[str, Any], moments: list[float], factor: float) -> bool:
    """Return whether a fault is over before the next of these moments in a load of `factor` times the length, too."""
    for_s = seconds_of(fault["for"])
    for at_s in _moments_of(fault):
        following_s = next((moment for moment in moments if moment >= at_s + for_s), None)
        if following_s is not None and for_s > (following_s - at_s) * factor:
            return False
    return True


def lines_of(text: str) -> dict[Where, int]:
    """Return the line of each table and key, by its path in the document."""
    found: dict[Where, int] = {(): 1}
    counts: dict[str, int] = {}
    table: Where = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if head := _HEAD.match(line):
            names = head[2].split(".")
            table = tuple(names)
            if head[1] == "[[":
                counts[head[2]] = counts.get(head[2], -1) + 1
                table = (*names, counts[head[2]])
            elif names[0] in counts:  # a table inside the last one of an array
                table = (names[0], counts[names[0]], *names[1:])
            found.setdefault(table, number)
        elif _KEY.match(line):
            parts = [part.strip() for part in line.partition("=")[0].split(".")]
            for length in range(1, len(parts) + 1):
                found.setdefault((*table, *parts[:length]), number)
    return found


def line_at(lines: Mapping[Where, int], where: Where) -> int:
    """Return the line of a path, or of the innermost thing around it that has one."""
    while where not in lines:
        where = where[:-1]
    return lines[where]


def dotted(where: Where) -> str:
    """Return a path for people: `stages[1].rate: `, "" for the document."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return f"{text}: " if text else ""


def seconds_of(text: str) -> float:
    """Return the seconds of a duration that the schema has let through."""
    return float(text[:-1]) * _SECONDS[text[-1]]


def error_path(error: Any) -> Where:
    """Return where a mistake is: a key that is not known is itself the place."""
    where = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema.get("properties"), dict):
        unknown = sorted(set(error.instance) - set(error.schema["properties"]))
        return (*where, unknown[0])
    return where


_TYPES: Final = {
    "string": "a text in quotes",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
    "object": "a table",
    "boolean": "true or false",
}
_PATTERNS: Final = {
    SCHEMA["$defs"]["duration"]["pattern"]: "a time such as 30s, 5m or 24h",
    SCHEMA["$defs"]["name"]["pattern"]: "a region's name: a small letter, then small letters, digits and -",
    SCHEMA["$defs"]["topic"]["pattern"]: "a topic's name: letters, digits, _ and -",
    SCHEMA["properties"]["topology"]["properties"]["commit"]["pattern"]: "a commit, as git calls it",
    SCHEMA["properties"]["users"]["items"]["properties"]["keys"]["pattern"]: "uniform, zipf:1.1 or hot:0.9",
    SCHEMA["properties"]["users"]["items"]["properties"]["durability"]["pattern"]: "region or geo:2",
}


def _told(error: Any) -> str:
    """Return what is wrong and what is allowed."""
    rule, bound = error.validator, error.validator_value
    shown = repr(error.instance)
    shown = shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}..."
    match rule:
        case "enum":
            return f"{shown} is not one of {', '.join(map(str, bound))}"
        case "additionalProperties":
            return f"is not known here; allowed are {', '.join(sorted(error.schema['properties']))}"
        case "required":
            missing = [name for name in bound if name not in error.instance]
            return f"{missing[0]} is missing; needed are {', '.join(bound)}"
        case "type":
            return f"{shown} is not {_TYPES[bound]}"
        case "pattern":
            return f"{shown} is not {_PATTERNS[bound]}"
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            words = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than"}
            return f"{shown} must be {words.get(rule, 'less than')} {bound}"
        case "minItems" | "minLength":
            return "must not be empty"
        case "maxItems":
            return f"has {len(error.instance)} items; at most {bound} are allowed"
        case "uniqueItems":
            return f"{shown} names something twice"
        case _:
            return str(error.message)


def _contradictions(document: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Yield what each part allows and the parts together do not."""
    topology = document.get("topology", {})
    pairs = topology.get("pairs", "")
    regions = topology.get("regions", REGIONS)
    if topology.get("kind") == "wan":
        regions = ends_of_pairs(pairs)
        if not pairs:
            yield ("topology",), "pairs is missing: a test bed needs round trips such as us-eu=70ms"
        elif bad := [item for item in pairs.split(",") if not re.fullmatch(r"[a-z]\w*-[a-z]\w*=\d+(\.\d+)?ms", item)]:
            yield ("topology", "pairs"), f"{bad[0]!r} is not a round trip such as us-eu=70ms"
    elif "congestion_control" in topology:
        yield ("topology", "congestion_control"), "needs topology.kind = wan: else nothing is between the regions"
    if "commit" in topology and (topology["kind"] != "up" or topology.get("tls") or document.get("programs")):
        yield ("topology", "commit"), "needs topology.kind = up, without tls and without programs"
    if topology.get("kind") == "endpoints" and "endpoints" not in topology:
        yield ("topology",), "endpoints is missing: the file that `georelay up --endpoints FILE` has written"
    if topology.get("kind") == "inventory" and "inventory" not in topology:
        yield ("topology",), "inventory is missing: what `ansible-inventory -i` takes"
    for key, kinds in OF_A_RUNNING_MESH.items():
        if key in topology and topology["kind"] not in kinds:
            yield ("topology", key), f"is of a mesh that runs: topology.kind = {' or '.join(kinds)}"
    if ("break_command" in topology) != ("mend_command" in topology):
        yield ("topology",), "break_command and mend_command go together: what is killed is started again"
    topics = [topic["name"] for topic in document["topics"]]
    for row, name in enumerate(topics):
        if name in topics[:row]:
            yield ("topics", row, "name"), f"{name!r} is there twice"
    for region in regions if topology.get("kind", "up") not in RUNNING else ():
        if "-" in region:
            yield ("topology", "regions"), f"{region!r} has a hyphen: only a mesh that runs may have it"
    for region in topology.get("clocks", ()):
        if region not in regions:
            yield ("topology", "clocks"), f"{region!r} is not one of the regions {', '.join(regions)}"
        elif topology["kind"] in RUNNING:
            yield ("topology", "clocks"), IS_STARTED
    for row, topic in enumerate(document["topics"]):
        if "home" in topic and topic.get("homes") == "every":
            yield ("topics", row, "home"), "every region is a home of this topic: leave home away, or homes"
        elif "home" in topic and topic["home"] not in regions:
            yield ("topics", row, "home"), f"{topic['home']!r} is not one of the regions {', '.join(regions)}"
        yield from _wrong_places(row, topic, topology, regions)
    for part in ("users", "readers", "programs"):
        for row, entry in enumerate(document.get(part, ())):
            for name in entry["topics"]:
                if name not in topics:
                    yield (part, row, "topics"), f"{name!r} is not one of the topics {', '.join(topics)}"
                elif "filled_mb" in document["topics"][topics.index(name)]:
                    yield (part, row, "topics"), f"{name!r} is filled before the load: nobody writes to it or reads it"
            for region in entry.get("regions", ()):
                if region not in regions:
                    yield (part, row, "regions"), f"{region!r} is not one of the regions {', '.join(regions)}"
    yield from _wrong_checks(document, topology)
    yield from _wrong_kinds(document)
    yield from _wrong_programs(document)
    for row, stage in enumerate(document["stages"]):
        if stage["rate"] and not stage["users"]:
            yield ("stages", row, "users"), "0 users cannot offer anything: give users, or rate = 0"
    yield from _wrong_strikes(document, topology, regions, topics)


def _wrong_checks(document: Mapping[str, Any], topology: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Yield what cannot be checked in this topology."""
    checks = document.get("checks", {})
    if checks.get("report") and topology.get("kind") in RUNNING:
        yield ("checks", "report"), f"{IS_STARTED}; run `georelay report` on the brokers' traces instead"
    if checks.get("replicas"):
        if topology.get("kind") in RUNNING:
            yield ("checks", "replicas"), IS_STARTED
        elif of_every := [topic["name"] for topic in document["topics"] if topic.get("homes") == "every"]:
            yield ("checks", "replicas"), f"cannot compare {of_every[0]!r}, of homes = every"
    if checks.get("ends"):
        if topology.get("kind", "up") != "up" or topology.get("tls"):
            yield ("checks", "ends"), "needs topology.kind = up, without tls"
        elif homeless := [topic["name"] for topic in document["topics"] if "home" not in topic]:
            yield ("checks", "ends"), f"needs to know the home of {homeless[0]!r}: say it there"


def _wrong_strikes(
    document: Mapping[str, Any], topology: Mapping[str, Any], regions: Sequence[str], topics: Sequence[str]
) -> Iterator[tuple[Where, str]]:
    """Yield faults that are too late or strike what is not there."""
    whole_s = sum(seconds_of(stage["for"]) for stage in document["stages"])
    programs = [Programs(**entry).name for entry in document.get("programs", ())]
    for row, fault in enumerate(document.get("faults", ())):
        if seconds_of(fault["at"]) >= whole_s:
            yield ("faults", row, "at"), f"{fault['at']!r} is after the last stage, which ends at {whole_s:g}s"
        elif seconds_of(fault["at"]) + (fault.get("times", 1) - 1) * seconds_of(fault.get("every", "0s")) >= whole_s:
            yield ("faults", row, "times"), f"{fault['times']} are more than the stages have time for: {whole_s:g}s"
        if fault["do"] in CLIENT_FAULTS:
            if fault["what"] not in programs:
                yield ("faults", row, "what"), f"{fault['what']!r} is not one of the programs {', '.join(programs)}"
        elif (fault["do"], fault["what"]) != ("kill", f"coordinator of {QUEUE}") or QUEUE_CONSUMER not in programs:
            yield from _wrong_faults(row, fault, topology, regions, topics)


def _wrong_programs(document: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Yield what programs cannot be."""
    topology = document.get("topology", {})
    for row, entry in enumerate(document.get("programs", ())):
        if entry["kind"] == MOVING_READER:
            (topic, *more) = [topic for topic in document["topics"] if topic["name"] in entry["topics"]] or [{}]
            if more or "home" not in topic or topic.get("partitions", 1) > 1 or entry.get("count", 1) > 1:
                yield ("programs", row, "topics"), f"one {MOVING_READER!r} has one topic, of one partition and one home"
        elif topology.get("kind", "up") != "up" or topology.get("tls"):
            yield ("programs", row, "kind"), f"{entry['kind']!r} needs topology.kind = up, without tls"
        if (entry["kind"] == GROUP_MEMBER) != ("client" in entry):
            yield ("programs", row), f"client goes with {GROUP_MEMBER}, and is needed there"
        if entry.get("assignor") == COOPERATIVE and entry.get("client") != "confluent-kafka":
            yield ("programs", row, "assignor"), f"{COOPERATIVE!r} is known to confluent-kafka alone"
        if entry["kind"] == TRANSFORMER and (len(entry["topics"]) != 2 or entry.get("count", 1) > 1):
            yield ("programs", row, "topics"), "one transformer has two topics: what goes in, and where it comes out"


def _wrong_places(
    row: int, topic: Mapping[str, Any], topology: Mapping[str, Any], regions: Sequence[str]
) -> Iterator[tuple[Where, str]]:
    """Yield where a topic cannot be, and how it cannot come to be there."""
    allowed = _brokers_of(topology, regions)
    for name in topic.get("brokers", ()):
        if name not in allowed:
            yield ("topics", row, "brokers"), f"{name!r} is not one of {', '.join(allowed)}"
    for key in ("brokers", "filled_mb"):
        if key in topic and topology.get("kind") in RUNNING:
            yield ("topics", row, key), IS_STARTED


def _brokers_of(topology: Mapping[str, Any], regions: Sequence[str]) -> list[str]:
    numbers = range(1, topology.get("brokers_per_region", 1) + 1)
    return [f"{region}-{number}" for region in regions for number in numbers]


def _wrong_kinds(document: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Yield what a kind of user or reader cannot do with its topics."""
    partitions = {topic["name"]: topic.get("partitions", 1) for topic in document["topics"]}
    wide = {name for name, count in partitions.items() if count > SUBSCRIBED_MAX}
    users = document.get("users", ())
    of_every = {topic["name"] for topic in document["topics"] if topic.get("homes") == "every"}
    for part in ("users", "readers"):
        for row, entry in enumerate(document.get(part, ())):
            if entry.get("kind", "kafka") != "kafka" and (names := of_every.intersection(entry["topics"])):
                yield (part, row, "kind"), f"{entry['kind']!r} cannot use {min(names)!r}, of homes = every: use kafka"
    in_transactions = {name for entry in users if entry["kind"] == TRANSACTIONS for name in entry["topics"]}
    for row, entry in enumerate(users):
        if entry["kind"] == "grpc" and (many := [name for name in entry["topics"] if partitions.get(name, 1) > 1]):
            yield ("users", row, "topics"), f"{many[0]!r} has several partitions, and grpc publishes have no key"
        if entry["kind"] != "kafka" and not entry.get("sends_again", True):
            yield ("users", row, "sends_again"), f"{entry['kind']!r} always sends again: use kafka"
        if entry["kind"] != "native" and "durability" in entry:
            yield ("users", row, "durability"), f"{entry['kind']!r} asks for none: use native"
        if entry["kind"] == "text" and entry.get("payload_bytes", 0) > TEXT_BYTES_MAX:
            yield ("users", row, "payload_bytes"), f"a line of the text protocol holds at most {TEXT_BYTES_MAX} of them"
    for row, entry in enumerate(document.get("readers", ())):
        kind = entry.get("kind", "kafka")
        if kind in CANNOT_SEE and (names := in_transactions.intersection(entry["topics"])):
            yield (
                ("readers", row, "kind"),
                f"{kind!r} cannot tell how far it is in {min(names)!r}, which has transactions: use kafka or rest",
            )
        if kind == "websocket" and (names := wide.intersection(entry["topics"])):
            yield ("readers", row, "kind"), f"{kind!r} reads {SUBSCRIBED_MAX} partitions of {min(names)!r} at most"
        if kind == "queue" and len(entry["topics"]) > 1:
            yield ("readers", row, "topics"), "a queue has one topic: write a part of readers for each"
        if ("stay" in entry) != ("away" in entry):
            yield ("readers", row), "stay and away go together: how long a reader reads, and how long it is gone"
        if entry.get("groups", 1) > entry.get("count", 1):
            yield ("readers", row, "groups"), f"{entry['groups']} groups need as many readers: count is too small"


def _wrong_faults(
    row: int, fault: Mapping[str, Any], topology: Mapping[str, Any], regions: Sequence[str], topics: Sequence[str]
) -> Iterator[tuple[Where, str]]:
    """Yield what a fault cannot be in this topology."""
    kind, do, what = topology.get("kind", "up"), fault["do"], fault["what"]
    is_wan = kind == "wan" or "bed" in topology
    is_by_ansible = kind == "inventory" and "break_command" not in topology  # whose command is of brokers
    if kind in RUNNING and not _can_break(topology, do):
        yield ("faults", row, "do"), f"{do!r} {IS_STARTED}"
        return
    if (do == UPGRADE) != ("commit" in topology):
        yield ("faults", row, "do"), f"{do!r}: {UPGRADE} is the fault of a mesh with topology.commit, and of no other"
    if do in IN_A_BED and not is_wan:
        yield ("faults", row, "do"), f"{do!r} needs topology.kind = wan: only a test bed has such links"
    if do in BREAKABLE and "clocks" in topology:
        yield ("faults", row, "do"), f"{do!r} needs clocks that are right: leave topology.clocks away"
    if do in ("grow", "region-add", *PEERS) and (kind != "up" or topology.get("tls")):
        yield ("faults", row, "do"), f"{do!r} needs topology.kind = up, without tls"
    if do == "slow-clients" and not topology.get("tls"):
        yield ("faults", row, "do"), f"{do!r} needs topology.tls = true: handshakes that never end are among them"
    if do == "disk-lost" and topology.get("brokers_per_region", 1) < 3:
        yield ("faults", row, "do"), f"{do!r} needs topology.brokers_per_region = 3 or 5: else records are lost with it"
    if do == "certificates" and kind != "wan" and not topology.get("tls"):
        yield ("faults", row, "do"), f"{do!r} needs topology.tls = true, or topology.kind = wan, which has TLS"
    if ("times" in fault) != ("every" in fault):
        yield ("faults", row), "times and every go together: how often it strikes, and how long from one to the next"
    if do in AMOUNTS and AMOUNTS[do] not in fault:
        yield ("faults", row), f"{AMOUNTS[do]} is missing: {do} says by how much"
    names, homes = _brokers_of(topology, regions), [f"home of {topic}" for topic in topics]
    if do == "link-one-way":
        allowed = ["-".join(pair) for pair in permutations(regions, 2)]
        is_known = what in allowed
    elif do.startswith("link-"):
        allowed = [*regions, *("-".join(pair) for pair in combinations(regions, 2)), *homes]
        is_known = what in allowed or (len(set(what.split("-"))) == 2 and set(what.split("-")) <= set(regions))
    elif do == "bit-flip":
        places = [*names, *(f"leader of {topic}" for topic in topics), *(f"any of {region}" for region in regions)]
        file, _, place = what.partition(" of ")
        allowed = [f"FILE of BROKER of the files {', '.join(FILE_KINDS)} and the brokers {', '.join(places)}"]
        is_known = file in FILE_KINDS and place in places
    elif do == "region-add":
        allowed, is_known = ["a name that no region has"], what not in regions and bool(_REGION.fullmatch(what))
    elif do == "region-loss":
        allowed = [*regions, *homes]
        is_known = what in allowed
    elif do in ("grow", "certificates", "peer-flap", "power-cut", "disk-lies", UPGRADE):
        allowed, is_known = list(regions), what in regions
    elif do == "reassign":
        topic, _, brokers = what.partition(" to ")
        allowed = [f"TOPIC to BROKER,BROKER of the topics {', '.join(topics)} and the brokers {', '.join(names)}"]
        is_known = topic in topics and set(brokers.split(",")) <= set(names)
    else:
        allowed = [
            *names,
            *(f"leader of {topic}" for topic in topics),
            *(f"any of {region}" for region in regions),
            *(["gateway"] if do in ("kill", "stop") and not is_by_ansible else []),
        ]
        is_known = what in allowed
    if not is_known:
        yield ("faults", row, "what"), f"{what!r} is not one of {', '.join(allowed)}"


def _can_break(topology: Mapping[str, Any], do: str) -> bool:
    """Return whether a fault can be done to a mesh that runs, by what the campaign knows of it."""
    if do.startswith("link-"):
        return "bed" in topology
    knows_how = {"data", "break_command", "inventory"} & topology.keys()
    return do in ("kill", "region-loss") and bool(knows_how)


def _made(name: str, document: Mapping[str, Any]) -> Campaign:
    """Build the values of a document that was checked."""

    def fields(row: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments: lists as tuples, times in seconds."""
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        times = {f"{key}_s": seconds_of(str(plain.pop(key))) for key in TIMES & row.keys()}
        return plain | times

    made = {part: kind(**fields(document.get(part, {}))) for part, kind in TABLES.items()}
    made |= {part: tuple(kind(**fields(row)) for row in document.get(part, ())) for part, kind in ROWS.items()}
    if (topology := made["topology"]).kind == "wan":
        made["topology"] = replace(topology, regions=ends_of_pairs(topology.pairs))
    stages = [Stage(seconds=seconds_of(row["for"]), users=row["users"], rate=row["rate"]) for row in document["stages"]]
    faults = [Fault(**fields(each)) for row in document.get("faults", ()) for each in _strikes(row)]
    whole = {"about": document["about"], "seed": document.get("seed", 1), "stages": tuple(stages), **made}
    return Campaign(name=name, faults=tuple(sorted(faults, key=lambda each: each.at_s)), **whole)


def ends_of_pairs(pairs: str) -> tuple[str, ...]:
    """Return the regions that round trips such as us-eu=70ms name."""
    return tuple(dict.fromkeys(end for item in pairs.split(",") for end in item.split("=")[0].split("-") if end))


def _strikes(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a fault as often as it strikes."""
    once = {key: value for key, value in row.items() if key not in ("times", "every")}
    for moment in _moments_of(row):
        yield once | {"at": f"{moment!r}s"}
