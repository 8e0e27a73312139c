"""The state of each directed pair, with its cause, from what brokers at both ends say."""

from __future__ import annotations

import pytest

from gateway.console.pairs_core import Pair, pairs_of
from gateway.console.samples import MeshSamples
from tests.unit.console.world import heard, link, mesh, session, silent


def pair(samples: MeshSamples, way: str) -> Pair:
    return next(pair for pair in pairs_of(samples) if f"{pair.origin}-{pair.dest}" == way)


def test_every_direction_is_a_pair_of_its_own() -> None:
    ways = [(pair.origin, pair.dest) for pair in pairs_of(mesh(us=heard("us"), eu=heard("eu"), ap=heard("ap")))]
    assert ways == [("ap", "eu"), ("ap", "us"), ("eu", "ap"), ("eu", "us"), ("us", "ap"), ("us", "eu")]


def test_a_mirror_with_everything_is_in_step_and_its_floor_is_half_the_round_trip() -> None:
    samples = mesh(
        us=heard("us", links=[session("home", "eu")], rtts_us={"eu": 70_400, "us": 0}),
        eu=heard("eu", links=[link("us"), session("mirror", "us")], rtts_us={"us": 70_000}),
    )
    found = pair(samples, "us-eu").to_json()
    assert (found["state"], found["lag_records"], found["rtt_ms"], found["floor_ms"]) == ("ok", 0, 70.0, 35.0)


@pytest.mark.parametrize(
    ("cause", "words"),
    [("network", "not acknowledged in time"), ("throttled", "a limit"), ("apply", "write slower")],
)
def test_a_mirror_that_is_behind_says_why(cause: str, words: str) -> None:
    behind = session("home", "eu", state="lagging", cause=cause, records=41, ms=1_500.0)
    samples = mesh(us=heard("us", links=[behind]), eu=heard("eu", links=[link("us"), session("mirror", "us")]))
    found = pair(samples, "us-eu")
    assert (found.state, found.lag_records, found.lag_ms) == ("behind", 41, 1_500.0)
    assert words in found.cause


def test_a_mirror_that_lacks_no_record_is_behind_by_no_time() -> None:
    samples = mesh(us=heard("us"), eu=heard("eu", links=[link("us"), session("mirror", "us", records=0, ms=416.0)]))
    found = pair(samples, "us-eu")
    assert (found.lag_records, found.lag_ms) == (0, 0.0)


def test_a_cut_is_seen_where_the_mirror_dials_and_the_other_direction_stays_whole() -> None:
    gone = link("us", is_open=False, why="no sign of life for 1.5 s")
    samples = mesh(
        us=heard("us", links=[link("eu"), session("mirror", "eu"), session("home", "eu", records=7, ms=900.0)]),
        eu=heard("eu", links=[gone, session("mirror", "us", state="connecting"), session("home", "us")]),
    )
    cut = pair(samples, "us-eu")
    assert (cut.state, cut.cause) == ("cut", "eu cannot reach us: no sign of life for 1.5 s")
    assert (cut.lag_records, cut.lag_ms) == (7, 900.0), "what the home knows to be missing"
    assert pair(samples, "eu-us").state == "ok"


def test_one_open_connection_of_several_is_no_cut() -> None:
    samples = mesh(
        us=heard("us"),
        eu=heard("eu", links=[link("us", is_open=False, why="refused"), link("us"), session("mirror", "us")]),
    )
    assert pair(samples, "us-eu").state == "ok"


def test_a_destination_that_does_not_answer_is_not_known_and_no_cut() -> None:
    found = pair(mesh(us=heard("us"), eu=silent()), "us-eu")
    assert (found.state, found.lag_records) == ("silent", None)


def test_the_worst_of_many_sessions_is_the_pairs_state() -> None:
    rows = [session("mirror", "us", state=state) | {"stream": state} for state in ("idle", "diverged", "lagging")]
    found = pair(mesh(us=heard("us"), eu=heard("eu", links=[link("us"), *rows])), "us-eu")
    assert (found.state, found.streams) == ("diverged", 3)


def test_a_pair_without_streams_is_not_behind() -> None:
    found = pair(mesh(us=heard("us"), eu=heard("eu", links=[link("us")])), "us-eu")
    assert (found.state, found.lag_records) == ("none", 0)


def test_a_session_that_only_the_old_home_still_lists_is_over() -> None:
    stale = session("home", "eu", state="connecting", records=9, ms=5_000.0) | {"stream": "moved"}
    us = heard("us", links=[session("home", "eu"), stale])
    eu = heard("eu", links=[link("us"), session("mirror", "us")])
    found = pair(mesh(us=us, eu=eu), "us-eu")
    assert (found.state, found.lag_records, found.streams) == ("ok", 0, 1)
    assert pair(mesh(us=us, eu=silent()), "us-eu").lag_records == 9, "nobody contradicts it"
