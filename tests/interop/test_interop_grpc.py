"""broker.Broker and georelay.v1.Admin with stubs that a user generated from the public contracts, in a process that
holds nothing of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60

PRELUDE = """
import json, sys, threading, time, grpc
sys.path.insert(0, sys.argv[1])
import broker_pb2, broker_pb2_grpc
def open_stub(address):
    channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    return broker_pb2_grpc.BrokerStub(channel)
addresses, topic = json.loads(sys.argv[2]), sys.argv[3]
metadata = [("authorization", sys.argv[4])] if len(sys.argv) > 4 else []
def publish(stub, body, name=None):
    request = broker_pb2.PublishRequest(topic=name or topic, body=body)
    return stub.Publish(request, timeout=20, metadata=metadata).id
def subscribe(stub, since=0, name=None):
    return stub.Subscribe(broker_pb2.SubscribeRequest(topics={name or topic: since}), timeout=40, metadata=metadata)
def take(call, count):
    return [next(call) for _ in range(count)]
"""


@pytest.fixture
def run_user_code(user_stubs: Path) -> Any:
    """Run a user's program and return the JSON it prints."""

    def run(code: str, addresses: list[str], topic: str, *more: str) -> Any:
        program = [sys.executable, "-c", PRELUDE + code, str(user_stubs), json.dumps(addresses), topic, *more]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, cwd=user_stubs, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        return json.loads(ran.stdout)

    return run


@pytest.fixture
def everywhere(mesh: Any) -> list[str]:
    """The gateway and one broker per region."""
    return [mesh.gateway_grpc, *(mesh.addresses(region, "grpc")[0] for region in mesh.regions)]


def test_what_is_published_at_any_address_is_delivered_at_every_address(
    mesh: Any, everywhere: list[str], run_user_code: Any
) -> None:
    topic = mesh.new_topic("grpc", partitions=1)
    code = """
stubs = [open_stub(address) for address in addresses]
calls = [subscribe(stub) for stub in stubs]
ids = [publish(stub, f"{number}-{at}".encode()) for number in range(20) for at, stub in enumerate(stubs)]
got = [[(m.id, m.topic, m.body.decode(), m.timestamp) for m in take(call, len(ids))] for call in calls]
print(json.dumps({"ids": ids, "got": got}))
"""
    answer = run_user_code(code, everywhere, topic)
    wanted = [f"{number}-{at}" for number in range(20) for at in range(len(everywhere))]
    assert [body for _, _, body, _ in answer["got"][0]] == wanted
    assert (
        [identity for identity, *_ in answer["got"][0]]
        == answer["ids"]
        == [f"{topic}/0/{n}" for n in range(len(wanted))]
    )
    assert all(received == answer["got"][0] for received in answer["got"])
    timestamps = [timestamp for *_, timestamp in answer["got"][0]]
    assert timestamps == sorted(timestamps)
    assert {name for _, name, _, _ in answer["got"][0]} == {topic}


def test_a_subscription_begins_at_its_timestamp(mesh: Any, everywhere: list[str], run_user_code: Any) -> None:
    topic = mesh.new_topic("grpc-since", partitions=1)
    code = """
stub = open_stub(addresses[0])
for number in range(10):
    publish(stub, str(number).encode())
everything = take(subscribe(stub), 10)
since = everything[6].timestamp
first = min(m.body for m in everything if m.timestamp >= since)
late = [[m.body.decode() for m in take(subscribe(open_stub(a), since), 10 - int(first))] for a in addresses]
future = subscribe(stub, int(time.time() * 1e6) + 3_600_000_000)
publish(stub, b"too early")
threading.Timer(0.5, future.cancel).start()
try:
    next(future); missed = False
except grpc.RpcError as error:
    missed = error.code() == grpc.StatusCode.CANCELLED
print(json.dumps({"first": int(first), "late": late, "missed": missed}))
"""
    answer = run_user_code(code, everywhere, topic)
    assert answer["late"] == [[str(number) for number in range(answer["first"], 10)]] * len(everywhere)
    assert answer["missed"]


def test_an_unknown_topic_is_made_by_publishing_and_by_subscribing(
    mesh: Any, everywhere: list[str], run_user_code: Any
) -> None:
    code = """
stub = open_stub(addresses[0])
publish(stub, b"x", topic + "-published")
calls = [subscribe(open_stub(address), 0, topic + "-subscribed") for address in addresses[2:] * 5]
identity = publish(open_stub(addresses[2]), b"y", topic + "-subscribed")  # all at once: one topic comes of it
print(json.dumps({"id": identity, "bodies": [next(call).body.decode() for call in calls]}))
"""
    stem = mesh.new_name("grpc-unknown")
    assert run_user_code(code, everywhere, stem) == {
        "id": f"{stem}-subscribed/0/0",
        "bodies": ["y"] * 5 * (len(mesh.regions) - 1),
    }
    mesh.wait_for_topic(f"{stem}-published", region="us")
    document = mesh.http("GET", f"/v1/topics/{stem}-subscribed?region=us").document
    assert (document["partitions"], document["homes"]) == (1, "one")
    assert document["home"] in (2, 3)  # the region that asked first


def test_bad_requests_have_a_grpc_status_of_their_own(mesh: Any, everywhere: list[str], run_user_code: Any) -> None:
    code = """
stub = open_stub(addresses[0])
def status(call):
    try:
        call()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
print(json.dumps([
    status(lambda: stub.Publish(broker_pb2.PublishRequest(body=b"x"), timeout=20)),
    status(lambda: publish(stub, b"x", "not a name")),
    status(lambda: publish(stub, b"x", "us.mirror")),
    status(lambda: next(stub.Subscribe(broker_pb2.SubscribeRequest(), timeout=20))),
]))
"""
    statuses = run_user_code(code, everywhere, "unused")
    assert [name for name, _ in statuses] == ["INVALID_ARGUMENT", "INVALID_ARGUMENT", "NOT_FOUND", "INVALID_ARGUMENT"]
    assert all(details for _, details in statuses)


def test_topics_are_administered_through_the_gateway_and_seen_by_every_broker(
    mesh: Any, everywhere: list[str], run_user_code: Any
) -> None:
    code = """
import admin_pb2, admin_pb2_grpc
def open_admin(address):
    channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    return admin_pb2_grpc.AdminStub(channel)
def code_of(call):
    try:
        call()
        return "OK"
    except grpc.RpcError as error:
        return error.code().name
def until(wanted):
    deadline = time.monotonic() + 30
    while not wanted() and time.monotonic() < deadline:
        time.sleep(0.05)
    return wanted()
admins = [open_admin(address) for address in addresses]
create = admin_pb2.CreateTopicRequest(name=topic, partitions=2, home="eu", retention_ms=60_000)
describe = admin_pb2.DescribeTopicRequest(name=topic)
made = admins[0].CreateTopic(create, timeout=30)
known = [until(lambda: code_of(lambda: admin.DescribeTopic(describe, timeout=20)) == "OK") for admin in admins]
publish(open_stub(addresses[2]), b"x")
def marks(admin):
    states = admin.DescribeTopic(describe, timeout=20).partition_states
    return sorted(state.high_watermark for state in states if state.HasField("high_watermark"))
print(json.dumps({
    "made": [made.name, made.partitions, made.home, made.retention_ms, len(made.topic_id)],
    "known": known,
    "same_id": len({admin.DescribeTopic(describe, timeout=20).topic_id for admin in admins}),
    "marks_at_home": until(lambda: marks(admins[2]) == [0, 1]),
    "listed": [topic in [t.name for t in admin.ListTopics(admin_pb2.ListTopicsRequest(), timeout=20).topics]
               for admin in admins],
    "again": code_of(lambda: admins[0].CreateTopic(create, timeout=30)),
    "deleted": code_of(lambda: admins[0].DeleteTopic(admin_pb2.DeleteTopicRequest(name=topic), timeout=30)),
    "gone": [until(lambda: code_of(lambda: admin.DescribeTopic(describe, timeout=20)) == "NOT_FOUND")
             for admin in admins],
}))
"""
    topic = mesh.new_name("grpc-admin")
    assert run_user_code(code, everywhere, topic) == {
        "made": [topic, 2, "eu", 60_000, 16],
        "known": [True] * len(everywhere),
        "same_id": 1,
        "marks_at_home": True,
        "listed": [True] * len(everywhere),
        "again": "ALREADY_EXISTS",
        "deleted": "OK",
        "gone": [True] * len(everywhere),
    }


def test_cancelling_ends_the_subscription_and_frees_the_broker(mesh: Any, run_user_code: Any) -> None:
    topic = mesh.new_topic("grpc-cancel", partitions=1)
    code = """
stub = open_stub(addresses[0])
for number in range(300):  # each leaves a reader behind unless cancelling reaches the broker
    call = subscribe(stub)
    call.cancel()
publish(stub, b"still here")
print(json.dumps(next(subscribe(stub)).body.decode()))
"""
    assert run_user_code(code, [mesh.gateway_grpc], topic) == "still here"


@pytest.mark.parametrize(
    ("contract", "file_name", "ours", "message"),
    [
        ("broker.proto", "broker.proto", "region.api._pb.broker_pb2", "SubscribeRequest(topics={'a': 5})"),
        ("broker.proto", "my_company_broker.proto", "region.api._pb.broker_pb2", "SubscribeRequest(topics={'a': 5})"),
        ("georelay/v1/streams.proto", "streams.proto", "georelay._pb.streams_pb2", "FindOffsetsRequest(since_us=5)"),
        ("georelay/v1/admin.proto", "admin.proto", "georelay._pb.admin_pb2", "CreateTopicRequest(name='a')"),
        ("georelay/v1/routes.proto", "routes.proto", "georelay._pb.routes_pb2", "RegionsRequest(client='a')"),
    ],
)
def test_stubs_of_a_user_load_beside_ours_in_one_process(
    tmp_path: Path, request: pytest.FixtureRequest, contract: str, file_name: str, ours: str, message: str
) -> None:
    (tmp_path / file_name).write_text((request.config.rootpath / "proto" / contract).read_text())
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--python_out={tmp_path}", file_name],
        check=True,
        timeout=SECONDS,
    )
    theirs = file_name.removesuffix(".proto") + "_pb2"
    for first, second in ((theirs, ours), (ours, theirs)):
        code = f"""
import importlib, sys
sys.path.append({str(tmp_path)!r})
one, two = (importlib.import_module(name) for name in ({first!r}, {second!r}))
sent = one.{message}
kind = getattr(two, type(sent).__name__)
assert kind.FromString(sent.SerializeToString()) == two.{message}
"""
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ran.returncode == 0, ran.stderr[-1000:]
