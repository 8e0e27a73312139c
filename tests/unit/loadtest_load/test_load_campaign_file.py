"""A wrong campaign is refused with one line: the place, what is there, and what is allowed."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from georelay.cli.application import PLUGIN_GROUP, build_app
from georelay.cli.failure import CommandFailed
from loadtest.load.campaign_file import (
    SCHEMA,
    CampaignError,
    begun_with,
    find,
    load,
    parse,
    scaled,
    seeded,
    shipped,
    shortened,
)
from tests.tiers import in_one_test

RIGHT = """\
about = "One topic for ten seconds."
seed = 7

[target]
deliver_p99_ms_max = 50

[topology]
kind = "up"
regions = ["us", "eu"]
brokers_per_region = 1

[[topics]]
name = "orders"
partitions = 3
home = "us"

[[stages]]
for = "4s"
users = 10
rate = 50

[[stages]]
for = "6s"
users = 20
rate = 200

[[users]]
kind = "kafka"
topics = ["orders"]
keys = "zipf:1.1"

[[readers]]
topics = ["orders"]

[[faults]]
at = "5s"
do = "kill"
what = "us-1"
for = "2s"

[checks]
silence_s_max = 5
"""

WRONG = {
    "not TOML": ("seed = 7", "seed = ", "not TOML: Invalid value (at line 2, column 8)"),
    "no such part": ("[checks]", "[checcks]", "41: checcks: is not known here; allowed are about, checks, faults, "),
    "no such key": ("partitions = 3", "partions = 3", "14: topics[0].partions: is not known here; allowed are broke"),
    "a part is missing": ("about = ", "# ", "1: about is missing; needed are about, topics, stages, users"),
    "a key is missing": ("rate = 50\n", "", "17: stages[0]: rate is missing; needed are for, users, rate"),
    "a text for a number": ("rate = 200", 'rate = "200"', "25: stages[1].rate: '200' is not a number"),
    "a number for a text": ('at = "5s"', "at = 5", "36: faults[0].at: 5 is not a text in quotes"),
    "a fraction of a user": ("users = 20", "users = 2.5", "24: stages[1].users: 2.5 is not a whole number"),
    "a text for a list": ('["us", "eu"]', '"us,eu"', "9: topology.regions: 'us,eu' is not a list"),
    "no such topology": ('"up"', '"cloud"', "8: topology.kind: 'cloud' is not one of up, wan, endpoints, inventory"),
    "even brokers": ("region = 1", "region = 2", "10: topology.brokers_per_region: 2 is not one of 1, 3, 5"),
    "no such user": ('"kafka"', '"amqp"', "28: users[0].kind: 'amqp' is not one of kafka"),
    "no such fault": ('"kill"', '"maim"', "37: faults[0].do: 'maim' is not one of kill"),
    "a rate below nothing": ("rate = 200", "rate = -1", "25: stages[1].rate: -1 must be at least 0"),
    "too many partitions": ("= 3", "= 3000", "14: topics[0].partitions: 3000 must be at most 1000"),
    "a bound of nothing": ("_max = 50", "_max = 0", "5: target.deliver_p99_ms_max: 0 must be more than 0"),
    "a time without unit": ('"6s"', '"6"', "23: stages[1].for: '6' is not a time such as 30s, 5m or 24h"),
    "a bad topic": ('name = "orders"', 'name = "a b"', "13: topics[0].name: 'a b' is not a topic's name: letters, "),
    "a bad region": ('"eu"]', '"EU"]', "9: topology.regions[1]: 'EU' is not a region's name: a small letter, then "),
    "bad keys": ('"zipf:1.1"', '"normal"', "30: users[0].keys: 'normal' is not uniform, zipf:1.1 or hot:0.9"),
    "an empty list": (
        '[[readers]]\ntopics = ["orders"]',
        "[[readers]]\ntopics = []",
        "33: readers[0].topics: must not",
    ),
    "a region twice": ('["us", "eu"]', '["us", "us"]', "9: topology.regions: ['us', 'us'] names something twice"),
    "a home elsewhere": ('home = "us"', 'home = "ap"', "15: topics[0].home: 'ap' is not one of the regions us, eu"),
    "an unknown topic": (
        '["orders"]\nkeys',
        '["oders"]\nkeys',
        "29: users[0].topics: 'oders' is not one of the topics",
    ),
    "a late fault": ('at = "5s"', 'at = "1m"', "36: faults[0].at: '1m' is after the last stage, which ends at 10s"),
    "a fault of nobody": (
        '"us-1"',
        '"us-2"',
        "38: faults[0].what: 'us-2' is not one of us-1, eu-1, leader of orders, any",
    ),
    "a slow link here": (
        '"kill"',
        '"link-slow"\nms = 9',
        "37: faults[0].do: 'link-slow' needs topology.kind = wan",
    ),
    "a path that nobody chooses here": (
        "region = 1",
        'region = 1\ncongestion_control = "bbr"',
        "11: topology.congestion_control: needs topology.kind = wan",
    ),
    "files of a mesh that is started here": (
        "region = 1",
        'region = 1\ndata = "d"',
        "11: topology.data: is of a mesh that runs: topology.kind = endpoints",
    ),
    "killed and never started again": (
        "region = 1",
        'region = 1\nbreak_command = "b"',
        "7: topology: break_command and mend_command go together",
    ),
    "a durability that nobody is asked for": (
        '"zipf:1.1"',
        '"zipf:1.1"\ndurability = "geo:2"',
        "31: users[0].durability: 'kafka' asks for none: use native",
    ),
    "a bad durability": (
        '"zipf:1.1"',
        '"zipf:1.1"\ndurability = "geo"',
        "31: users[0].durability: 'geo' is not region or geo:2",
    ),
    "a reader that moves among partitions": (
        "[checks]",
        '[[programs]]\nkind = "moving-reader"\ntopics = ["orders"]\n\n[checks]',
        "43: programs[0].topics: one 'moving-reader' has one topic, of one partition and one home",
    ),
    "a link of a broker": ('"kill"', '"link-cut"', "38: faults[0].what: 'us-1' is not one of us, eu, us-eu"),
    "certificates without TLS": (
        '"kill"',
        '"certificates"',
        "37: faults[0].do: 'certificates' needs",
    ),
    "half of a repetition": ('for = "2s"', 'for = "2s"\ntimes = 2', "35: faults[0]: times and every go together: how"),
    "more strikes than time": (
        'for = "2s"',
        'for = "2s"\ntimes = 3\nevery = "3s"',
        "40: faults[0].times: 3 are more than the stages have time for: 10s",
    ),
    "by how much": ('"kill"', '"disk-slow"', "35: faults[0]: ms is missing: disk-slow says by how much"),
    "a lost broker": ('"kill"', '"region-loss"', "38: faults[0].what: 'us-1' is not one of us, eu"),
    "nobody offers": ("users = 20", "users = 0", "24: stages[1].users: 0 users cannot offer anything: give users, or"),
    "no round trips": ('kind = "up"', 'kind = "wan"', "7: topology: pairs is missing: a test bed needs round trips"),
    "grpc with partitions": ('"kafka"', '"grpc"', "29: users[0].topics: 'orders' has several partitions, and grpc"),
    "transactions that nobody can follow": (
        "[[readers]]",
        '[[users]]\nkind = "transactions"\ntopics = ["orders"]\n[[readers]]\nkind = "text"',
        "36: readers[0].kind: 'text' cannot tell how far it is in 'orders', which has transactions: use kafka or rest",
    ),
    "a subscription to too much": (
        'partitions = 3\nhome = "us"\n',
        'partitions = 65\n[[readers]]\nkind = "websocket"\ntopics = ["orders"]\n',
        "16: readers[0].kind: 'websocket' reads 64 partitions of 'orders' at most",
    ),
    "half of a reader that comes and goes": (
        "[[readers]]",
        '[[readers]]\nstay = "5s"',
        "32: readers[0]: stay and",
    ),
    "groups without members": (
        "[[readers]]",
        "[[readers]]\ngroups = 2",
        "33: readers[0].groups: 2 groups ne",
    ),
    "a clock of nobody": (
        "[[topics]]",
        "clocks = {ap = 30}\n[[topics]]",
        "12: topology.clocks: 'ap' is not one of the regions us, eu",
    ),
    "wrong clocks that step": (
        'for = "2s"',
        'for = "2s"\n[topology.clocks]\nus = 30\n[[faults]]\nat = "1s"\ndo = "disk-full"\nwhat = "us-1"\nfor = "1s"',
        "44: faults[1].do: 'disk-full' needs clocks that are right: leave topology.clocks away",
    ),
    "a home of every region": (
        'home = "us"',
        'home = "us"\nhomes = "every"',
        "15: topics[0].home: every region is a home",
    ),
    "a stream of every region for others": (
        'home = "us"',
        'homes = "every"\n[[users]]\nkind = "native"\ntopics = ["orders"]',
        "17: users[0].kind: 'native' cannot use 'orders', of homes = every: use kafka",
    ),
    "who always sends again": (
        'kind = "kafka"',
        'sends_again = false\nkind = "native"',
        "28: users[0].sends_again: 'native' always sends again: use kafka",
    ),
    "a disk that nobody else has": ('"kill"', '"disk-lost"', "37: faults[0].do: 'disk-lost' needs topology.brokers"),
    "a move to nobody": (
        '"kill"\nwhat = "us-1"',
        '"reassign"\nwhat = "orders to us-1,us-7"',
        "38: faults[0].what: 'orders to us-1,us-7' is not one of TOPIC to BROKER,BROKER of the topics orders and",
    ),
    "replicas of nobody": (
        'home = "us"',
        'home = "us"\nbrokers = ["us-7"]',
        "16: topics[0].brokers: 'us-7' is not one of us-1, eu-1",
    ),
    "a full topic that somebody reads": (
        'home = "us"',
        'home = "us"\nfilled_mb = 1',
        "30: users[0].topics: 'orders' is filled before the load: nobody writes to it or reads it",
    ),
    "a region that is there": ('"kill"', '"region-add"', "38: faults[0].what: 'us-1' is not one of a name that no re"),
    "a bit of no file": (
        '"kill"\nwhat = "us-1"',
        '"bit-flip"\nwhat = "log of us-1"',
        "38: faults[0].what: 'log of us-1' is not one of FILE of BROKER of the files sealed-log, running-log,",
    ),
    "a flood of nothing": ('"kill"', '"flood"', "35: faults[0]: per_s is missing: flood says by how much"),
    "handshakes without TLS": (
        '"kill"',
        '"slow-clients"',
        "37: faults[0].do: 'slow-clients' needs topology.tls = true",
    ),
    "a program of nobody": ('"kill"', '"kill-client"', "38: faults[0].what: 'us-1' is not one of the programs "),
    "a pipeline to nowhere": (
        "[[faults]]",
        '[[programs]]\nkind = "transformer"\ntopics = ["orders"]\n[[faults]]',
        "37: programs[0].topics: one transformer has two topics: what goes in, and where it comes out",
    ),
    "a member of no client": (
        "[[faults]]",
        '[[programs]]\nkind = "group-member"\ntopics = ["orders"]\n[[faults]]',
        "35: programs[0]: client goes with group-member, and is needed there",
    ),
    "an assignor of others": (
        "[[faults]]",
        '[[programs]]\nkind = "group-member"\nclient = "sdk"\n'
        'topics = ["orders"]\nassignor = "cooperative-sticky"\n[[faults]]',
        "39: programs[0].assignor: 'cooperative-sticky' is known to confluent-kafka alone",
    ),
    "a coordinator of no queue": (
        '"us-1"',
        '"coordinator of bills"',
        "38: faults[0].what: 'coordinator of bills' is not one of us-1, eu-1, leader of orders, any of us",
    ),
    "no inventory": ('"up"', '"inventory"', "7: topology: inventory is missing: what `ansible-inventory -i` takes"),
    "an inventory of a mesh that is started here": (
        "region = 1",
        'region = 1\ninventory = "i"',
        "11: topology.inventory: is of a mesh that runs: topology.kind = inventory",
    ),
    "files of a mesh that Ansible deployed": (
        '"up"',
        '"inventory"\ninventory = "i"\ndata = "d"',
        "10: topology.data: is of a mesh that runs: topology.kind = endpoints",
    ),
    "no endpoints": ('"up"', '"endpoints"', "7: topology: endpoints is missing: the file that `georelay up"),
}


@in_one_test("case", WRONG)
def test_a_wrong_campaign_is_refused_with_the_place_and_what_is_allowed(case: str) -> None:
    before, after, said = WRONG[case]
    assert RIGHT.count(before) >= 1
    with pytest.raises(CampaignError) as refused:
        parse(RIGHT.replace(before, after, 1), name="wrong", place="wrong.toml")
    assert str(refused.value).startswith(f"wrong.toml:{'' if said[0].isdigit() else ' '}{said}")
    assert "\n" not in str(refused.value)


def test_a_right_campaign_becomes_values_in_seconds() -> None:
    campaign = parse(RIGHT, name="right", place="right.toml")
    assert (campaign.seconds, campaign.seed, campaign.topology.regions) == (10.0, 7, ("us", "eu"))
    assert campaign.faults[0].at_s == 5.0
    assert [campaign.rate_of_one_user(at) for at in (0, 3.9, 4, 9.9, 10)] == [5.0, 5.0, 10.0, 10.0, 0.0]


def test_a_fault_that_strikes_again_is_as_many_faults() -> None:
    again = RIGHT.replace('for = "2s"', 'for = "1s"\ntimes = 3\nevery = "2s"')
    assert [fault.at_s for fault in parse(again, name="again", place="again.toml").faults] == [5.0, 7.0, 9.0]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('home = "us"', 'homes = "every"', "cannot compare 'orders', of homes = every"),
        (
            '"up"',
            '"endpoints"\nendpoints = "mesh.json"',
            "needs a mesh that is started for it: topology.kind up or wan",
        ),
    ],
)
def test_replicas_are_compared_only_where_their_files_can_be_found(before: str, after: str, said: str) -> None:
    faults, checks = RIGHT.index("[[faults]]"), RIGHT.index("[checks]")
    text = (RIGHT[:faults] + RIGHT[checks:] + "replicas = true\n").replace(before, after, 1)
    with pytest.raises(CampaignError, match=rf"checks\.replicas: {said}"):
        parse(text, name="wrong", place="wrong.toml")


@pytest.mark.parametrize("kind", ["endpoints", "inventory"])
def test_no_report_is_made_of_a_mesh_whose_traces_are_elsewhere(kind: str) -> None:
    text = RIGHT.replace('"up"', f'"{kind}"\n{kind} = "e"\nbreak_command = "b"\nmend_command = "m"')
    assert parse(text, name="right", place="right.toml").topology.kind == kind
    said = "needs a mesh that is started for it: topology.kind up or wan; run `georelay report` on the brokers' traces"
    with pytest.raises(CampaignError, match=rf"^wrong\.toml:46: checks\.report: {said} instead$"):
        parse(f"{text}report = true\n", name="wrong", place="wrong.toml")


@in_one_test(
    ("known", "do", "what", "said"),
    [
        ("", "kill", "us-1", ""),
        ("", "kill", "leader of orders", ""),
        ("", "region-loss", "us", ""),
        ("", "kill", "gateway", "'gateway' is not one of us-1, eu-1, leader of orders"),
        ('break_command = "b"\nmend_command = "m"', "kill", "gateway", ""),
        ("", "stop", "us-1", "'stop' needs a mesh that is started for it"),
        ("", "link-cut", "us-eu", "'link-cut' needs a mesh that is started for it"),
    ],
)
def test_what_ansible_deployed_is_broken_as_far_as_systemd_does_it(known: str, do: str, what: str, said: str) -> None:
    text = RIGHT.replace('kind = "up"', f'kind = "inventory"\ninventory = "i.yml"\n{known}')
    text = text.replace('do = "kill"\nwhat = "us-1"', f'do = "{do}"\nwhat = "{what}"')
    if not said:
        assert parse(text, name="right", place="right.toml").topology.inventory == "i.yml"
        return
    with pytest.raises(CampaignError, match=said):
        parse(text, name="wrong", place="wrong.toml")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('home = "us"\n', "", "needs to know the home of 'orders': say it there"),
        ('"up"\n', '"up"\ntls = true\n', "needs topology.kind = up, without tls"),
    ],
)
def test_ends_are_asked_for_only_where_their_home_is_known_and_can_be_asked(before: str, after: str, said: str) -> None:
    text = RIGHT.replace("silence_s_max = 5", "ends = true")
    assert parse(text, name="right", place="right.toml").checks.ends
    with pytest.raises(CampaignError, match=rf"checks\.ends: {said}"):
        parse(text.replace(before, after, 1), name="wrong", place="wrong.toml")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('do = "link-loss"\nwhat = "us-eu"', "faults[0]: percent is missing: link-loss says by how much"),
        ('do = "link-cap"\nwhat = "us"', "faults[0]: mbit is missing: link-cap says by how much"),
        ('do = "link-one-way"\nwhat = "us"', "faults[0].what: 'us' is not one of us-eu, eu-us"),
    ],
)
def test_a_link_of_a_test_bed_is_changed_by_how_much_and_from_where_it_says(fault: str, said: str) -> None:
    bed = RIGHT.replace('kind = "up"\nregions = ["us", "eu"]', 'kind = "wan"\npairs = "us-eu=70ms"')
    with pytest.raises(CampaignError) as refused:
        parse(bed.replace('do = "kill"\nwhat = "us-1"', fault), name="wrong", place="wrong.toml")
    assert str(refused.value).endswith(said)


def test_regions_of_a_test_bed_are_those_of_its_round_trips() -> None:
    wan = RIGHT.replace('kind = "up"\nregions = ["us", "eu"]', 'kind = "wan"\npairs = "us-eu=70ms,us-ap=150ms"')
    assert parse(wan, name="wan", place="wan.toml").topology.regions == ("us", "eu", "ap")
    with pytest.raises(CampaignError, match=r"wan\.toml:9: topology\.pairs: 'us-eu' is not a round trip such as us-eu"):
        parse(wan.replace("us-eu=70ms", "us-eu"), name="wan", place="wan.toml")


def test_a_shortened_campaign_has_its_stages_and_faults_in_proportion() -> None:
    again = RIGHT.replace('for = "2s"', 'for = "1s"\ntimes = 3\nevery = "2s"')
    short = parse(shortened(again, 5), name="short", place="short.toml")
    assert [stage.seconds for stage in short.stages] == [2.0, 3.0]
    assert [fault.at_s for fault in short.faults] == [2.5, 3.5, 4.5]
    assert short.topics == parse(again, name="long", place="long.toml").topics


@pytest.mark.parametrize(
    ("seconds", "held_s"),
    [(10, [3.0, 1.0, 2.0]), (8, [3.0, 0.8, 1.6]), (5, [3.0, 0.5, 1.0]), (2, [0.6, 0.2, 0.4])],
    ids=["not shortened", "a little", "by half", "all of them"],
)
def test_a_fault_of_a_shortened_campaign_holds_as_long_unless_it_would_hold_into_the_next_one_and_did_not_before(
    seconds: float, held_s: list[float]
) -> None:
    i, j = RIGHT.index("[[faults]]"), RIGHT.index("[checks]")
    moments = (("0s", "3s"), ("7s", "1s"), ("8s", "2s"))
    faults = "".join(f'[[faults]]\nat = "{at}"\ndo = "kill"\nwhat = "us-1"\nfor = "{held}"\n\n' for at, held in moments)
    short = parse(shortened(RIGHT[:i] + faults + RIGHT[j:], seconds), name="short", place="short.toml")
    assert [fault.for_s for fault in short.faults] == held_s


@pytest.mark.parametrize("text", [RIGHT, RIGHT.replace("seed = 7\n", "")], ids=["another seed", "a seed"])
def test_a_campaign_takes_the_seed_that_is_asked_for(text: str) -> None:
    assert parse(seeded(text, 12), name="seeded", place="seeded.toml").seed == 12


def test_a_scaled_campaign_offers_a_share_of_its_records_and_asks_for_no_more() -> None:
    text = find("nfr").read_text(encoding="utf-8")
    whole, half = (parse(each, name="nfr", place="nfr.toml") for each in (text, scaled(text, 0.5)))
    assert [stage.rate for stage in half.stages] == [stage.rate / 2 for stage in whole.stages]
    assert half.target.records_per_s_min == (whole.target.records_per_s_min or 0) / 2 > 0
    assert half.checks.silence_s_max == 2 * (whole.checks.silence_s_max or 0) > 0
    assert half.users == whole.users and half.seconds == whole.seconds
    assert half.target.deliver_p99_ms_max == whole.target.deliver_p99_ms_max


ODD = """\
seed=7
about = 'Every key as TOML has it too: é, "quoted".'
target.records_per_s_min = 1_00
target.floor_ms = {"us->eu" = 4}
checks = {silence_s_max = 5, settle = '9s'}
topology = {kind = 'up', regions = ["us", "eu"], commit = 'v1'}
stages = [{for = '4s', users = 1, rate = 50}, {for = '6s', users = 2, rate = 2e2}]
users = [{kind = "kafka", topics = ["orders"]}]
faults = [{at = '5s', do = 'upgrade', what = 'us', for = '5s'}]

[[topics]]
name = "orders"
settings = {"min.insync.replicas" = "2"}
"""


def test_a_campaign_is_changed_however_it_is_written() -> None:
    whole = parse(ODD, name="odd", place="odd.toml")
    text = begun_with(seeded(scaled(shortened(ODD, 5), 0.5), 12), "v2")
    changed = parse(text, name="odd", place="odd.toml")
    assert [(stage.seconds, stage.rate) for stage in changed.stages] == [(2.0, 25.0), (3.0, 100.0)]
    assert [(fault.at_s, fault.for_s) for fault in changed.faults] == [(2.5, 2.5)]
    assert (changed.target.records_per_s_min, changed.checks.silence_s_max) == (50.0, 10.0)
    assert (changed.seed, changed.topology.commit, changed.checks.settle_s) == (12, "v2", 9.0)
    assert (changed.about, changed.topics, changed.users) == (whole.about, whole.topics, whole.users)
    assert changed.target.floor_ms == {"us->eu": 4}


def test_a_change_that_is_wrong_is_not_said_to_stand_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(ODD)
    app = build_app(importlib.metadata.entry_points(group=PLUGIN_GROUP), ())
    ended = CliRunner().invoke(app, ["load", "run", str(file), "--commit", "a b", "--out", str(tmp_path / "out")])
    assert isinstance(ended.exception, CommandFailed)
    assert re.match(r"odd\.toml as changed:\d+: topology\.commit: 'a b' is not a commit", str(ended.exception))


@in_one_test("path", shipped())
def test_every_shipped_campaign_can_be_scaled(path: Path) -> None:
    tiny = parse(scaled(path.read_text(encoding="utf-8"), 0.001), name="tiny", place=path.name)
    assert [stage.rate for stage in tiny.stages] == [pytest.approx(stage.rate / 1000) for stage in load(path).stages]


@in_one_test("path", shipped())
def test_every_shipped_campaign_is_right(path: Path) -> None:
    assert load(path).seconds > 0


def test_the_commands_list_and_judge_campaign_files(tmp_path: Path) -> None:
    app, runner = build_app(importlib.metadata.entry_points(group=PLUGIN_GROUP), ()), CliRunner()
    listed = runner.invoke(app, ["load", "list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [path.stem for path in shipped()]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(RIGHT.replace('"up"', '"cloud"'))
    judged = runner.invoke(app, ["load", "validate", "smoke", str(wrong)])
    assert judged.exit_code == 3
    assert "wrong.toml:8: topology.kind" in judged.output


def test_the_schema_is_one_that_editors_can_use() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.dumps(SCHEMA)


@in_one_test(
    ("known", "do", "said"),
    [
        ("", 'do = "kill"', "'kill' needs a mesh that is started for it"),
        ('data = "d"', 'do = "kill"', ""),
        ('break_command = "b"\nmend_command = "m"', 'do = "kill"', ""),
        ('data = "d"', 'do = "link-cut"', "'link-cut' needs a mesh that is started for it"),
        ('bed = "b"', 'do = "link-slow"\nms = 9', ""),
        ('data = "d"\nbed = "b"', 'do = "grow"', "'grow' needs a mesh that is started for it"),
    ],
)
def test_a_running_mesh_is_broken_as_far_as_the_campaign_knows_how(known: str, do: str, said: str) -> None:
    text = RIGHT.replace('kind = "up"', f'kind = "endpoints"\nendpoints = "e"\n{known}')
    text = text.replace('do = "kill"', do).replace('"us-1"', '"us"' if '"kill"' not in do else '"us-1"')
    if not said:
        assert parse(text, name="right", place="right.toml").faults
        return
    with pytest.raises(CampaignError, match=said):
        parse(text, name="wrong", place="wrong.toml")
