"""Foreign Kafka clients sign in by SCRAM through the gateway, as a user that was made and granted over HTTP."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import time
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from tests.closing_clients import started

pytestmark = pytest.mark.slow

USER, PASSWORD, TOPIC = "scram-ann", "correct-horse-9", "scram-orders"
SECONDS_MAX = 30.0
BOTH = pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])


@pytest.fixture(scope="module")
def granted(guarded_mesh: Any) -> Any:
    """Make the user, its rights and its topic, once; wait until every region knows."""
    deadline = time.monotonic() + SECONDS_MAX
    body = {"name": USER, "password": PASSWORD}
    while guarded_mesh.http("POST", "/v1/users", body).status not in (201, 403):  # 403: there already
        assert time.monotonic() < deadline
        time.sleep(0.2)
    entries = [
        {"principal": f"User:{USER}", "resource": "topic", "name": TOPIC, "operation": operation}
        for operation in ("read", "write")
    ]
    assert guarded_mesh.http("POST", "/v1/acls", {"entries": entries}).status == 201
    assert guarded_mesh.http("POST", "/v1/topics", {"name": TOPIC}).status in (201, 409)
    ann = dataclasses.replace(guarded_mesh.sign_in, user=USER, password=PASSWORD)
    for region in guarded_mesh.regions:
        address = guarded_mesh.addresses(region, "admin")[0]
        while guarded_mesh.http("GET", f"/v1/topics/{TOPIC}", address=address, sign_in=ann).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    return guarded_mesh


def librdkafka(mesh: Any, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": mesh.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "log_level": 0,
    }


@BOTH
def test_confluent_kafka_publishes_what_it_may_and_nothing_else(granted: Any, mechanism: str) -> None:
    outcomes: dict[str, Any] = {}
    producer = confluent_kafka.Producer(librdkafka(granted, mechanism))
    for topic in (TOPIC, "scram-forbidden"):
        producer.produce(topic, b"x", on_delivery=lambda error, record: outcomes.update({record.topic(): error}))
    assert producer.flush(SECONDS_MAX) == 0
    assert outcomes[TOPIC] is None
    assert outcomes["scram-forbidden"].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


@BOTH
async def test_aiokafka_publishes(granted: Any, mechanism: str) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=granted.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    )
    async with started(producer):
        assert (await producer.send_and_wait(TOPIC, b"y")).offset >= 0


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@BOTH
def test_kcat_reads_though_its_final_nonce_only_ends_with_ours(granted: Any, mechanism: str) -> None:
    options = [
        part
        for name, value in librdkafka(granted, mechanism).items()
        if name not in ("bootstrap.servers",)
        for part in ("-X", f"{name}={value}")
    ]
    done = subprocess.run(
        ["kcat", "-b", granted.bootstrap, *options, "-L", "-t", TOPIC],
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert TOPIC in done.stdout


@BOTH
def test_a_wrong_password_is_an_authentication_error(granted: Any, mechanism: str) -> None:
    met: list[int] = []
    configuration = librdkafka(granted, mechanism, "battery-staple-7") | {"error_cb": lambda e: met.append(e.code())}
    producer = confluent_kafka.Producer(configuration)
    deadline = time.monotonic() + SECONDS_MAX
    while confluent_kafka.KafkaError._AUTHENTICATION not in met:
        assert time.monotonic() < deadline
        producer.poll(0.1)
