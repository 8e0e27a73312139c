"""The ranking of regions: as gateways tell it, as it is kept on disk, and who is asked for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from georelay.errors import BadRequest, Unauthenticated, Unavailable
from georelay.ranking import CACHE_AGE_S_MAX, Ranking, RankingFile, RegionAddresses, ranking_of
from georelay.region_follower import worth_measuring
from georelay.resolving import Resolver

NOW_S = 1_800_000_000.0
TWO = Ranking(regions=(RegionAddresses(name="us", grpc=("us-1:1",)), RegionAddresses(name="eu", grpc=("eu-1:1",))))


def answer(**changes: Any) -> dict[str, Any]:
    rows = [
        {"region": "us", "ready": True, "grpc": ["us-1:1"], "estimate_ms": 2.0, "error_ms": 0.5},
        {"region": "ap", "ready": False, "grpc": ["ap-1:1"]},
        {"region": "eu", "ready": True, "grpc": ["eu-1:1"], "estimate_ms": 70.0, "error_ms": None},
    ]
    return {"ttl_s": 28.5, "reconnect_spread_ms": 60_000, "regions": rows, **changes}


def test_a_ranking_has_the_regions_that_are_ready_with_what_is_known_of_the_way() -> None:
    ranking, names = ranking_of(answer())
    assert [row.name for row in ranking.regions] == ["us", "eu"]
    assert (names, ranking.ttl_s, ranking.spread_s) == (("us", "ap", "eu"), 28.5, 60.0)
    assert (ranking.regions[0].estimate_ms, ranking.regions[1].error_ms) == (2.0, float("inf"))
    assert (ranking.addresses_of("eu"), ranking.addresses_of("ap")) == (("eu-1:1",), ())


def test_a_ranking_that_is_kept_is_read_again_by_the_same_user_for_the_same_url(tmp_path: Path) -> None:
    RankingFile(tmp_path / "new", "http://a").write(TWO, now_s=NOW_S)
    assert RankingFile(tmp_path / "new", "http://a").read(now_s=NOW_S + 60) == TWO
    assert RankingFile(tmp_path / "new", "http://b").read(now_s=NOW_S) is None
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()] == [0o600]


@pytest.mark.parametrize("later_s", [-60.0, CACHE_AGE_S_MAX + 1])
def test_a_ranking_of_another_time_is_not_used(tmp_path: Path, later_s: float) -> None:
    file = RankingFile(tmp_path, "http://a")
    file.write(TWO, now_s=NOW_S)
    assert file.read(now_s=NOW_S + later_s) is None


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "written_s": 1799999999, "regions": [{}]}']
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, raw: bytes) -> None:
    file = RankingFile(tmp_path, "http://a")
    file.path.write_bytes(raw)
    assert file.read(now_s=NOW_S) is None


def test_a_file_that_others_may_write_does_not_say_where_passwords_go(tmp_path: Path) -> None:
    file = RankingFile(tmp_path, "http://a")
    file.write(TWO, now_s=NOW_S)
    file.path.chmod(0o666)
    assert file.read(now_s=NOW_S) is None


def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    file = RankingFile(tmp_path / "file", "http://a")
    file.write(TWO, now_s=NOW_S)
    assert file.read(now_s=NOW_S) is None


def test_only_what_could_be_better_is_worth_measuring() -> None:
    near = RegionAddresses(name="us", grpc=("a",), estimate_ms=2.0, error_ms=0.5)
    far = RegionAddresses(name="eu", grpc=("b",), estimate_ms=70.0, error_ms=2.0)
    vague = RegionAddresses(name="ap", grpc=("c",), estimate_ms=60.0, error_ms=58.0)
    beside = RegionAddresses(name="sa", grpc=("d",), estimate_ms=30.0, error_ms=25.0)
    assert worth_measuring(Ranking(regions=(near, far, vague))) == []
    assert worth_measuring(Ranking(regions=(beside, far, vague))) == ["sa", "ap"]
    assert worth_measuring(Ranking(regions=(near, RegionAddresses(name="new", grpc=("e",))))) == ["us", "new"]
    assert worth_measuring(Ranking(regions=())) == []


class Gateway:
    """Answers /v1/resolve; `posts` are the bodies it got. An old one knows only GET."""

    def __init__(self) -> None:
        self.posts: list[Any] = []
        self.gets = 0
        self.is_old = False
        self.knows_where = True
        self.status = 200
        self.document: Any = answer()

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            if self.is_old:
                return web.Response(status=405)
            self.posts.append(await request.json())
            if not self.knows_where and "region" in self.posts[-1]:
                return web.Response(status=400)
        else:
            self.gets += 1
        return web.json_response(self.document, status=self.status)


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    asked = Gateway()
    app = web.Application()
    app.router.add_route("*", "/v1/resolve", asked.answer)
    async with TestServer(app) as server:
        yield asked, f"http://127.0.0.1:{server.port}"


async def test_a_gateway_is_told_who_asks_and_what_was_measured(gateway: tuple[Gateway, str], tmp_path: Path) -> None:
    asked, url = gateway
    resolver = Resolver(url, region=None, authorization=None, client="billing-7", kept=RankingFile(tmp_path, url))
    assert await resolver.kept() is None
    ranking = await resolver.resolve([{"region": "eu", "rtt_us": 1500, "samples": 3, "age_s": 0}])
    assert asked.posts[0]["client"] == "billing-7"
    assert asked.posts[0]["observed"][0]["region"] == "eu"
    kept = await resolver.kept()
    assert kept is not None and kept.regions[0].grpc == ranking.regions[0].grpc


async def test_a_gateway_of_an_older_version_is_asked_as_before(gateway: tuple[Gateway, str]) -> None:
    asked, url = gateway
    asked.is_old = True
    assert (await Resolver(url, region=None, authorization=None).resolve()).regions[0].name == "us"
    assert asked.gets == 1


async def test_a_gateway_is_told_where_the_client_is_unless_it_does_not_know_what_that_means(
    gateway: tuple[Gateway, str],
) -> None:
    asked, url = gateway
    resolver = Resolver(url, region=None, authorization=None)
    await resolver.resolve(here="eu")
    asked.knows_where = False
    assert (await resolver.resolve(here="eu")).regions[0].name == "us"
    assert [body.get("region") for body in asked.posts] == ["eu", "eu", None]


async def test_who_wants_one_region_gets_that_and_is_not_sent_elsewhere(gateway: tuple[Gateway, str]) -> None:
    asked, url = gateway
    resolver = Resolver(url, region="eu", authorization=None)
    assert [row.name for row in (await resolver.resolve()).regions] == ["eu"]
    assert not resolver.is_told and not asked.posts
    with pytest.raises(BadRequest, match="known: us, ap, eu"):
        await Resolver(url, region="sa", authorization=None).resolve()
    with pytest.raises(Unavailable, match="no region"):
        await Resolver(url, region="ap", authorization=None).resolve()


@pytest.mark.parametrize(("status", "error"), [(401, Unauthenticated), (503, Unavailable)])
async def test_refusals_are_errors_with_the_name_of_the_gateway(
    gateway: tuple[Gateway, str], status: int, error: type[Exception]
) -> None:
    asked, url = gateway
    asked.status = status
    with pytest.raises(error, match="the gateway at http"):
        await Resolver(url, region=None, authorization=None).resolve()


async def test_what_is_no_gateway_is_said_to_be_none(gateway: tuple[Gateway, str]) -> None:
    asked, url = gateway
    asked.document = {"regions": [{"name": 1}]}
    with pytest.raises(BadRequest, match="not a georelay gateway"):
        await Resolver(url, region=None, authorization=None).resolve()
