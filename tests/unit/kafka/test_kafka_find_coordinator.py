"""FindCoordinator: the broker of a group or of a transactional id, alone or in batches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import AccessDenied
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.group_membership import FindCoordinatorRequest
from region.kafka.handlers import find_coordinator


@pytest.fixture
async def client(bed: Any) -> Any:
    return await bed.client()


@pytest.mark.parametrize(("version", "key_type"), [(0, 0), *itertools.product((1, 2, 3), (0, 1))])
async def test_the_broker_that_leads_is_named(bed: Any, client: Any, version: int, key_type: int) -> None:
    request = FindCoordinatorRequest(key="group", key_type=key_type)
    answer = await client.call(request, ApiKey.FIND_COORDINATOR, version)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (
        ErrorCode.NONE,
        1001,
        "127.0.0.1",
        bed.cluster.kafka_port,
    )


async def test_a_batch_has_an_answer_for_every_key(client: Any) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["a", "", "b"])
    answer = await client.call(request, ApiKey.FIND_COORDINATOR, 4)
    assert [(row.key, row.node_id, row.error_code) for row in answer.coordinators] == [
        ("a", 1001, ErrorCode.NONE),
        ("", -1, ErrorCode.INVALID_GROUP_ID),
        ("b", 1001, ErrorCode.NONE),
    ]


async def test_unknown_types_are_refused(client: Any) -> None:
    answer = await client.call(FindCoordinatorRequest(key="k", key_type=2), ApiKey.FIND_COORDINATOR, 3)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (ErrorCode.INVALID_REQUEST, -1, "", -1)


async def test_without_a_leader_the_answer_can_be_asked_again(
    bed: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_coordinator, "WAIT_S", 0.05)
    coordinators = bed.services.coordinators
    coordinators.logs[coordinators.partition_of("k")].depose()
    answer = await client.call(FindCoordinatorRequest(key="k"), ApiKey.FIND_COORDINATOR, 3)
    assert (answer.error_code, answer.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


async def test_a_leader_that_is_no_broker_known_here_is_not_named(
    bed: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_coordinator, "WAIT_S", 0.05)
    coordinators = bed.services.coordinators
    coordinators.logs[coordinators.partition_of("k")].depose(leader=1999)
    answer = await client.call(FindCoordinatorRequest(key="k"), ApiKey.FIND_COORDINATOR, 3)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_too_many_keys_are_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_coordinator, "KEYS_MAX", 2)
    answer = await client.call(FindCoordinatorRequest(coordinator_keys=["a"] * 3), ApiKey.FIND_COORDINATOR, 4)
    assert [row.error_code for row in answer.coordinators] == [ErrorCode.INVALID_REQUEST] * 3


async def test_who_may_not_describe_a_group_learns_nothing_of_it(bed: Any) -> None:
    access = SimpleNamespace(refusal=lambda *_: AccessDenied.to("group"))
    bed.services = replace(bed.services, access=access)
    client = await bed.client()
    answer = await client.call(FindCoordinatorRequest(key="k"), ApiKey.FIND_COORDINATOR, 3)
    assert (answer.error_code, answer.node_id) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, -1)


async def test_a_coordinator_that_was_moved_to_another_region_is_named_with_its_address(
    bed: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators = bed.services.coordinators
    there = SimpleNamespace(broker=2001, kafka_host="eu.example", kafka_port=9092)
    coordinators.logs[coordinators.partition_of("k")].depose(leader=2001)
    monkeypatch.setattr(coordinators, "elsewhere", {2001: there}.get)
    answer = await client.call(FindCoordinatorRequest(key="k"), ApiKey.FIND_COORDINATOR, 3)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (ErrorCode.NONE, 2001, "eu.example", 9092)
