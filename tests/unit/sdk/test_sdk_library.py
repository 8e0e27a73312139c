"""What a library owes its application: silence, and the same names without asyncio."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
import structlog

import georelay.admin
import georelay.connection
import georelay.consumer
import georelay.producer
import georelay.queue_consumer
import georelay.sync
import georelay.transaction
from georelay.library_log import log

# What objects of the SDK say to each other.
INTERNAL = {"enter", "group_id", "group_offsets", "identity", "include", "open", "renew", "settle"}


@pytest.fixture
def unconfigured() -> None:
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
def test_the_sdk_prints_nothing_in_an_application_that_has_set_up_no_logging(capfd: pytest.CaptureFixture[str]) -> None:
    log.error("publish.broke", topic="orders")
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("unconfigured")
def test_an_application_that_uses_logging_finds_the_events_of_the_sdk_there(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="georelay"):
        log.info("region.changed", before="us", after="eu")
        log.warning("commit.failed", group="billing", error="not answered")
    assert caplog.messages == ["commit.failed group='billing' error='not answered'"]


def test_an_application_that_uses_structlog_gets_the_values_as_fields() -> None:
    with structlog.testing.capture_logs() as said:
        log.info("region.changed", before="us", after="eu")
    assert said == [{"event": "region.changed", "before": "us", "after": "eu", "log_level": "info"}]


def test_no_module_of_the_sdk_logs_past_it() -> None:
    modules = (georelay.connection, georelay.consumer, georelay.producer, georelay.queue_consumer)
    assert all("structlog" not in inspect.getsource(module) for module in modules)


@pytest.mark.parametrize(
    ("asynchronous", "synchronous"),
    [
        (georelay.connection.Connection, georelay.sync.Connection),
        (georelay.producer.Producer, georelay.sync.Producer),
        (georelay.transaction.Transaction, georelay.sync.Transaction),
        (georelay.consumer.Consumer, georelay.sync.Consumer),
        (georelay.queue_consumer.QueueConsumer, georelay.sync.QueueConsumer),
        (georelay.queue_consumer.QueuedRecord, georelay.sync.QueuedRecord),
        (georelay.admin.Admin, georelay.sync.Admin),
    ],
    ids=lambda kind: kind.__name__,
)
def test_whatever_waits_on_a_loop_has_the_same_names_without_one(asynchronous: Any, synchronous: Any) -> None:
    wanted = {name for name in dir(asynchronous) if not name.startswith("_")} - INTERNAL
    there = {*dir(synchronous), *synchronous.__init__.__code__.co_names}  # attributes that a new object gets
    assert wanted <= there, wanted - there
