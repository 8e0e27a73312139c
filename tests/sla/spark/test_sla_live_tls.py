"""The live view over https with real certificates: who is refused is told why, and no secret is left anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from georelay.pki.directory import PkiDirectory
from georelay.tls import ClientAuth
from georelay.trace.kinds import TraceKind
from mesh.listening.listeners import Listeners
from mesh.listening.settings import LimitsSection, TlsSection
from mesh.tracing.shelf import TraceShelf
from region.api.admin_http import AdminHttp
from region.api.traces_http import TracesHttp
from region.controller.security_book import SecurityBook
from region.controller.security_wishes import add_acls, plan, put_token, put_user
from region.security.access import CLUSTER_NAME, Access, Operation, Resource
from region.security.acl import AclEntry, ResourcePattern
from region.security.rules import Authorization, BookRules
from region.security.scram_core import make_key
from region.security.sign_in import SignInService, hash_token, new_token
from region.security.user import ITERATIONS_MIN, BearerToken, Mechanism
from sla.errors import JobFailed, UsageError
from sla.jobs.live import LiveRequest, run_live
from sla.live.reaching import Credentials, NotReached, Server, find_brokers
from sla.sources.broker import LiveReader, StreamOptions
from sla.spark_properties import is_secret
from tests.sla.live_brokers import TracedBroker

READER, STRANGER = "live", "nosy"


class SecureBroker:
    """The admin listener of a broker over TLS: users, lists, traces; its wall clock is moved by tests.

    `live` may describe the cluster, `nosy` may sign in and nothing else.
    """

    def __init__(self, folder: Path, *, client_auth: ClientAuth = ClientAuth.NONE, host: str = "127.0.0.1") -> None:
        self.pki = PkiDirectory.create(folder / "pki", mesh_id="m")
        self.pki.issue_broker(2001)
        self.pki.issue_client("live")
        self.traced = TracedBroker(folder / "traces", "eu/2001")
        self.wall_s = time.time()
        self.book = SecurityBook()
        self.tokens = {name: self._add(name) for name in (READER, STRANGER)}
        cluster = ResourcePattern(resource=Resource.CLUSTER, name=CLUSTER_NAME)
        self._wish(add_acls([(cluster, AclEntry(principal=f"User:{READER}", operation=Operation.DESCRIBE))]))
        tls = TlsSection(
            cert_file=str(self.pki.path / "broker-2001.crt"),
            key_file=str(self.pki.path / "broker-2001.key"),
            ca_file=str(self.pki.path / "bundle.crt"),
            client_auth=client_auth,
        )
        self._parts = Listeners(tls, LimitsSection(), names=("admin",))["admin"]
        self._host, self.port = host, 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._http: AdminHttp | None = None

    def _add(self, name: str) -> str:
        salt = name.ljust(16).encode()
        keys = [make_key(kind, "correct horse", salt=salt, iterations=ITERATIONS_MIN) for kind in sorted(Mechanism)]
        self._wish(put_user(name, keys=keys))
        token = new_token()
        row = BearerToken(name="ci", hash=hash_token(token), expires_s=int(self.wall_s) + 600)
        self._wish(put_token(name, row))
        return token

    def _wish(self, wish: dict[str, object]) -> None:
        for definition in plan(self.book, wish):
            self.book.remember(replace(definition, index=self.book.index + 1))

    def __enter__(self) -> SecureBroker:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._http is not None
        asyncio.run_coroutine_threadsafe(self._http.close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _start(self) -> None:
        access = Access(BookRules(book=lambda: self.book, authorization=Authorization.ON))
        shelf = TraceShelf(self.traced.directory, region="eu", broker=2001)
        self._http = AdminHttp(
            cluster=MagicMock(),
            credentials=MagicMock(required=False),
            metrics=MagicMock(),
            records=MagicMock(read=AsyncMock(), publish=AsyncMock(), resolve=AsyncMock()),
            parts=self._parts,
            sign_in=SignInService(MagicMock(required=False), book=lambda: self.book, wall_s=lambda: self.wall_s),
            access=access,
            traces=TracesHttp(shelf, access=access, region="eu", broker=2001),
        )
        self.port = await self._http.start(self._host, 0)

    @property
    def url(self) -> str:
        return f"https://{self._host}:{self.port}"

    def credentials(self, folder: Path, user: str = READER, *, with_certificate: bool = False) -> Credentials:
        """Return what the user shows; "" for nobody."""
        token_file = folder / f"{user}.token"
        if user:
            token_file.write_text(self.tokens[user] + "\n")
        return Credentials(
            token_file=str(token_file) if user else "",
            ca_file=str(self.pki.path / "bundle.crt"),
            cert_file=str(self.pki.path / "client-live.crt") if with_certificate else "",
            key_file=str(self.pki.path / "client-live.key") if with_certificate else "",
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker that lets nobody in without a certificate of the mesh."""
    with SecureBroker(tmp_path_factory.mktemp("mutual"), client_auth=ClientAuth.REQUIRED) as broker:
        yield broker


def positions(url: str, credentials: Credentials) -> Any:
    with contextlib.closing(Server(url, credentials)) as server:
        return server.positions(TraceKind.PROBE)


def test_a_token_reads_over_https_and_a_certificate_over_mutual_tls(
    broker: SecureBroker, mutual: SecureBroker, tmp_path: Path
) -> None:
    found, silent = find_brokers([broker.url], broker.credentials(tmp_path))
    assert (sorted(found), silent) == (["eu/2001"], [])
    found, silent = find_brokers([mutual.url], mutual.credentials(tmp_path, "", with_certificate=True))
    assert (sorted(found), silent) == (["eu/2001"], [])


def test_an_authority_that_is_not_this_meshs_is_refused_with_what_to_do(broker: SecureBroker, tmp_path: Path) -> None:
    other = PkiDirectory.create(tmp_path / "other", mesh_id="other")
    credentials = Credentials(ca_file=str(other.path / "bundle.crt"))
    with pytest.raises(NotReached, match=r"its certificate is refused \(.*\): --ca must name the authority"):
        positions(broker.url, credentials)
    with pytest.raises(NotReached, match="its certificate is refused"):  # the system's authorities know it less
        positions(broker.url, Credentials())


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    with (
        SecureBroker(tmp_path, host="127.0.0.2") as broker,  # its certificate is for 127.0.0.1
        pytest.raises(NotReached, match=r"is refused \(.*127.0.0.2.*\): use a name or address that is in it"),
    ):
        positions(broker.url, broker.credentials(tmp_path))


@pytest.mark.parametrize("user", ["", READER])
def test_who_shows_no_certificate_where_one_is_needed_is_told_so(
    mutual: SecureBroker, tmp_path: Path, user: str
) -> None:
    with pytest.raises(NotReached, match="perhaps it lets nobody in without a certificate: give --cert and --key"):
        positions(mutual.url, mutual.credentials(tmp_path, user))


def test_a_certificate_of_another_authority_lets_nobody_in(mutual: SecureBroker, tmp_path: Path) -> None:
    other = PkiDirectory.create(tmp_path / "other", mesh_id="m")
    shown = other.issue_client("live")
    credentials = Credentials(
        ca_file=str(mutual.pki.path / "bundle.crt"), cert_file=str(shown), key_file=str(shown.with_suffix(".key"))
    )
    with pytest.raises(NotReached, match=r"perhaps it does not trust the certificate .*client-live.crt \(--cert\)"):
        positions(mutual.url, credentials)


def test_nobody_and_who_may_not_describe_the_cluster_are_refused_by_number(
    broker: SecureBroker, tmp_path: Path
) -> None:
    with pytest.raises(JobFailed, match="answers 401: "):
        positions(broker.url, broker.credentials(tmp_path, ""))
    with pytest.raises(JobFailed, match="answers 403: "):
        positions(broker.url, broker.credentials(tmp_path, STRANGER))


def test_a_token_that_expires_ends_the_planning_until_its_file_has_another(tmp_path: Path) -> None:
    with SecureBroker(tmp_path) as broker:
        credentials = broker.credentials(tmp_path)
        options = {
            "urls": broker.url, "kinds": "probe", "begin": "oldest", "token_file": credentials.token_file,
            "ca_file": credentials.ca_file,
        }  # fmt: skip
        broker.traced.probe(1, "us")
        reader = LiveReader(StreamOptions.of(options))
        first = reader.latestOffset({}, reader.getDefaultReadLimit())
        broker.wall_s += 700
        with pytest.raises(JobFailed, match="answers 401: wrong or expired token") as refused:
            reader.latestOffset(first, reader.getDefaultReadLimit())
        with pytest.raises(JobFailed, match="401: wrong or expired token"):
            run_live(LiveRequest(sources=(broker.url,), checkpoint=tmp_path / "live", credentials=credentials))
        assert broker.tokens[READER] not in str(refused.value) + repr(options)
        Path(credentials.token_file).write_text(broker._add(READER))
        assert reader.latestOffset(first, reader.getDefaultReadLimit()) == first


def test_plain_http_to_a_tls_listener_is_named(broker: SecureBroker) -> None:
    with pytest.raises(NotReached, match=f"http://127.0.0.1:{broker.port}: "):
        positions(f"http://127.0.0.1:{broker.port}", Credentials())


def test_a_token_over_plain_http_is_refused_off_this_machine(broker: SecureBroker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="over https or to this machine only"):
        positions("http://192.0.2.1:8080", broker.credentials(tmp_path))


def test_a_view_over_mutual_tls_counts_and_leaves_no_secret_behind(spark: Any, tmp_path: Path) -> None:
    events = spark.sparkContext._jsc.sc().conf().toDebugString()
    with SecureBroker(tmp_path / "broker", client_auth=ClientAuth.REQUIRED) as broker:
        for seq in range(5):
            broker.traced.probe(1_700_000_040 + seq, "us")
        credentials = broker.credentials(tmp_path, with_certificate=True)
        request = LiveRequest(
            sources=(broker.url,), checkpoint=tmp_path / "live", credentials=credentials, is_once=True,
            is_from_oldest=True,
        )  # fmt: skip
        state = run_live(request)
        assert state.rows == {"probe": 5}
        secrets = [broker.tokens[READER].encode(), (broker.pki.path / "client-live.key").read_bytes()[60:100]]
        plan = spark.read.format("georelay_live").options(
            urls=broker.url, kinds="probe", token_file=credentials.token_file
        )
    shown = [str(spark.sparkContext.getConf().getAll()), str(spark.conf.getAll), events, str(vars(plan))]
    written = [path.read_bytes() for path in (tmp_path / "live").rglob("*") if path.is_file()]
    assert len(written) > 5
    for text in (*(each.encode() for each in shown), *written):
        assert not any(secret in text for secret in secrets)
    offsets = [raw for path in (tmp_path / "live/spark/offsets").glob("[0-9]*") for raw in [path.read_text()]]
    assert any("eu/2001" in text for text in offsets)
    assert json.loads((tmp_path / "live/live.json").read_text())["pairs"][0]["since_start"]["probes_ok"] == 5


def test_spark_hides_the_values_of_every_setting_that_we_call_a_secret(spark: Any) -> None:
    java = spark.sparkContext._jvm.java.util.regex.Pattern.compile(spark.conf.get("spark.redaction.regex"))
    for key in ("spark.x.Passphrase", "spark.x.credentials", "spark.y.password", "a.token", "fs.s3a.access.key"):
        assert is_secret(key)
        assert java.matcher(key).find(), key
    assert not java.matcher("spark.app.name").find()
