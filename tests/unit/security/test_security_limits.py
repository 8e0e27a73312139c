"""Failures by address and name, token buckets, quotas and the filter of repeated events."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.listening import sign_in_failures_core as failures_core
from mesh.listening.sign_in_failures_core import SignInFailures
from region.controller.security_wishes import put_quota
from region.security import audit_core, quota_core
from region.security.access import Principal
from region.security.audit_core import RepeatFilter
from region.security.quota_core import TokenBucket
from region.security.quotas import Quotas
from region.security.sign_in import client_of

ALICE, BOB = Principal(name="User:alice"), Principal(name="User:bob")


def fail(failures: SignInFailures, host: str, now_s: float, name: str = "ann") -> float | None:
    delay = failures.begin(host, name, now_s)
    if delay is not None:
        failures.end(host, name, now_s, has_failed=True)
    return delay


def test_the_first_failures_are_free_and_then_the_wait_doubles_up_to_a_bound() -> None:
    failures = SignInFailures()
    delays = [fail(failures, "a", 0.0) for _ in range(14)]
    assert delays[:5] == [0.0] * 5
    assert delays[5:9] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == failures_core.DELAY_S_MAX


def test_failures_of_one_name_keep_no_other_name_at_the_address_waiting() -> None:
    failures = SignInFailures()
    for _ in range(50):
        fail(failures, "a", 0.0)
    assert failures.begin("a", "bob", 0.0) == 0.0
    assert failures.begin("b", "ann", 0.0) == 0.0


def test_who_tries_one_name_after_the_other_waits_at_last() -> None:
    failures = SignInFailures()
    delays = [fail(failures, "a", 0.0, f"name-{n}") for n in range(failures_core.FREE_OF_ADDRESS + 3)]
    assert delays[: failures_core.FREE_OF_ADDRESS] == [0.0] * failures_core.FREE_OF_ADDRESS
    assert delays[failures_core.FREE_OF_ADDRESS :] == [0.1, 0.2, 0.4]


def test_failures_are_forgotten_one_after_the_other() -> None:
    failures = SignInFailures()
    for _ in range(8):
        fail(failures, "a", 0.0)
    assert failures.begin("a", "ann", 3 * failures_core.FORGET_S) == pytest.approx(0.1)
    failures.end("a", "ann", 100.0, has_failed=False)
    assert len(failures) == 0


def test_rows_are_bounded_and_the_oldest_failure_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures_core, "ROWS_MAX", 6)
    failures = SignInFailures()
    for host in ("a", "b", "c", "d"):
        for _ in range(6):
            fail(failures, host, 0.0)
    assert len(failures) == 6
    assert failures.begin("a", "ann", 0.0) == 0.0
    failures.end("zz", "ann", 0.0, has_failed=True)  # forgotten meanwhile: no harm


def test_an_address_without_failures_may_have_any_number_of_sign_ins_at_a_time() -> None:
    failures = SignInFailures()
    assert [failures.begin("a", "ann", 0.0) for _ in range(200)] == [0.0] * 200


def test_where_a_try_costs_much_so_many_of_a_name_and_of_an_address_are_at_it_at_a_time() -> None:
    failures = SignInFailures(bounds_free=True)
    begun = [failures.begin("a", "ann", 0.0) for _ in range(failures_core.WAITING_MAX + 1)]
    assert begun == [*[0.0] * failures_core.WAITING_MAX, None]
    others = [failures.begin("a", f"name-{n}", 0.0) for n in range(failures_core.FREE_OF_ADDRESS)]
    assert others.count(None) == failures_core.WAITING_MAX
    assert failures.begin("b", "ann", 0.0) == 0.0
    failures.end("a", "ann", 0.0, has_failed=False)
    assert failures.begin("a", "ann", 0.0) == 0.0


@pytest.mark.parametrize(
    ("host", "certificate", "reported", "client"),
    [
        ("127.0.0.1", "", "198.51.100.7", "198.51.100.7"),
        ("192.0.2.1", "User:gateway-east", "2001:db8::1", "2001:db8::1"),
        ("192.0.2.1", "User:alice", "198.51.100.7", "192.0.2.1"),
        ("192.0.2.1", "", "198.51.100.7", "192.0.2.1"),
        ("127.0.0.1", "", "no address", "127.0.0.1"),
        ("127.0.0.1", "", None, "127.0.0.1"),
    ],
)
def test_the_address_of_a_client_is_believed_of_gateways_alone(
    host: str, certificate: str, reported: str | None, client: str
) -> None:
    assert client_of(host, reported, certificate=certificate) == client


def test_a_bucket_pauses_whoever_is_faster_than_its_rate() -> None:
    bucket = TokenBucket(100, 0.0)
    assert bucket.use(100, 0.0) == 0.0  # a second's worth at once
    assert bucket.use(50, 0.0) == 0.5
    assert bucket.use(0, 0.5) == 0.0
    assert bucket.use(100, 1.0) == pytest.approx(0.5)


def test_a_bucket_keeps_its_rate_over_a_long_time() -> None:
    bucket, now_s, used = TokenBucket(1_000, 0.0), 0.0, 0
    while now_s < 100:
        used += 300
        now_s += max(bucket.use(300, now_s), 0.001)
    assert used / now_s == pytest.approx(1_000, rel=0.02)


def test_one_huge_request_does_not_stop_a_client_for_ever() -> None:
    bucket = TokenBucket(1, 0.0)
    assert bucket.use(10**9, 0.0) == quota_core.PAUSE_S_MAX


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(10, 5.0)
    bucket.use(10, 5.0)
    assert bucket.use(10, 1.0) == 1.0


def test_quotas_are_the_principals_own_or_the_default_and_otherwise_none(home: Any) -> None:
    quotas = Quotas(book=lambda: home.book, monotonic_s=lambda: 0.0)
    assert quotas.is_idle
    assert quotas.produce(ALICE, 10**9) == 0
    home.wish(put_quota("User:*", produce_bytes_per_s=1_000))
    home.wish(put_quota("User:alice", produce_bytes_per_s=500_000))
    assert not quotas.is_idle
    assert quotas.produce(BOB, 2_000) == 1_000
    assert quotas.produce(ALICE, 2_000) == 0
    assert quotas.fetch(BOB, 10**9) == 0


def test_each_principal_has_buckets_of_its_own_under_the_default(home: Any) -> None:
    quotas = Quotas(book=lambda: home.book, monotonic_s=lambda: 0.0)
    home.wish(put_quota("User:*", fetch_bytes_per_s=1_000))
    assert [quotas.fetch(who, 1_500) for who in (ALICE, BOB)] == [500, 500]
    assert quotas.throttled_ms == 1_000


def test_a_share_of_a_core_is_seconds_of_work_per_second(home: Any) -> None:
    quotas = Quotas(book=lambda: home.book, monotonic_s=lambda: 0.0)
    home.wish(put_quota("User:alice", request_share_ppm=100_000))  # a tenth
    assert quotas.request(ALICE, 0.1) == 0
    assert quotas.request(ALICE, 0.01) == 100


def test_a_new_rate_counts_from_the_next_use(home: Any) -> None:
    quotas = Quotas(book=lambda: home.book, monotonic_s=lambda: 0.0)
    home.wish(put_quota("User:alice", produce_bytes_per_s=1_000))
    quotas.produce(ALICE, 1_000)
    home.wish(put_quota("User:alice", produce_bytes_per_s=100))
    assert quotas.produce(ALICE, 100) == 1_000
    home.wish(put_quota("User:alice", produce_bytes_per_s=0))
    assert quotas.produce(ALICE, 10**9) == 0


def test_principals_with_buckets_are_bounded(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.security.quotas.PRINCIPALS_MAX", 5)
    quotas = Quotas(book=lambda: home.book, monotonic_s=lambda: 0.0)
    home.wish(put_quota("User:*", produce_bytes_per_s=10))
    for number in range(50):
        quotas.produce(Principal(name=f"User:{number}"), 100)
    assert len(quotas._buckets) <= 5


def test_the_first_of_many_alike_is_written_and_then_one_line_counts_the_rest() -> None:
    repeats = RepeatFilter()
    counts = [repeats.count("k", 0.1 * number) for number in range(101)]
    assert [count for count in counts if count] == [1, 100]


def test_lines_per_second_are_bounded_however_many_kinds_there_are() -> None:
    repeats = RepeatFilter()
    written = sum(1 for number in range(10_000) if repeats.count(number, number / 10_000))
    assert written <= 2 * audit_core.LINES_PER_S
    assert len(repeats._kinds) <= audit_core.KEYS_MAX
    assert repeats.dropped > 0
