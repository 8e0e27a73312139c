"""What `georelay queues` and `georelay bindings` send and show."""

from __future__ import annotations

from georelay.cli.bindings import binding_line, header_rule
from georelay.cli.queues import NOT_GIVEN, list_line, record_line, settings_body


def test_only_settings_that_were_given_are_sent() -> None:
    body = settings_body(
        visibility_timeout_ms=NOT_GIVEN,
        max_deliveries=0,
        dead_letter_topic="",
        delay_ms=5,
        ttl_ms=NOT_GIVEN,
        dispatch="",
    )
    assert body == {"max_deliveries": 0, "delay_ms": 5}


def test_contents_of_records_move_no_terminal() -> None:
    row = {"lease": "1.0.0.1", "partition": 0, "offset": 3, "deliveries": 1, "key": None, "value": "a\x1b[2J[red]"}
    assert record_line(row) == {
        "lease": "1.0.0.1",
        "partition": "0",
        "offset": "3",
        "deliveries": "1",
        "key": "-",
        "value": "a?[2J\\[red]",
    }


def test_a_queue_is_one_line() -> None:
    row = {"name": "q", "topic": "t", "ready": 1, "delayed": 2, "leased": 3, "dead_lettering": 4, "coordinator": 1001}
    assert list(list_line(row).values()) == ["q", "t", "1", "2", "3", "4", "1001"]


def test_header_rules_are_names_or_names_with_values() -> None:
    assert header_rule("kind") == {"name": "kind"}
    assert header_rule("kind=a=b") == {"name": "kind", "value": "a=b"}


def test_a_binding_is_one_line() -> None:
    row = {
        "name": "b",
        "source": "o.>",
        "match": "any",
        "topic": "t",
        "headers": [{"name": "a", "value": "1"}, {"name": "c"}],
    }
    assert binding_line(row)["headers"] == "a=1 or c"
