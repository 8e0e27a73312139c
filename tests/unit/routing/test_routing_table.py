"""Which topics a pattern means, and that bindings never lead back."""

from __future__ import annotations

import pytest

from georelay.fields import FieldError
from region.routing.binding import Binding
from region.routing.pattern_core import matches, pattern_error
from region.routing.table_core import BindingTable, loop_with


@pytest.mark.parametrize(
    ("pattern", "topic", "is_match"),
    [
        ("orders", "orders", True),
        ("orders", "orders.new", False),
        ("orders.*.eu", "orders.new.eu", True),
        ("orders.*.eu", "orders.new.us", False),
        ("orders.*.eu", "orders.eu", False),
        ("orders.*.eu", "orders.a.b.eu", False),
        ("orders.>", "orders.new", True),
        ("orders.>", "orders.new.eu", True),
        ("orders.>", "orders", False),
        ("*.>", "orders.new", True),
        (">", "orders", True),
        ("*", "orders", True),
        ("*", "orders.new", False),
    ],
)
def test_patterns_match_as_those_of_nats(pattern: str, topic: str, is_match: bool) -> None:
    assert pattern_error(pattern) == ""
    assert matches(pattern, topic) is is_match


@pytest.mark.parametrize("pattern", ["", "a.>.b", "a..b", "a*", "orders.", ">.a", "ä", "x" * 300])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    assert pattern_error(pattern)


def _binding(name: str, source: str, target: str) -> Binding:
    return Binding(name=name, source=source, target=target)


def test_a_binding_to_its_own_source_is_a_loop() -> None:
    assert loop_with(_binding("a", "orders.>", "orders.copy"), []) == ["a"]


def test_a_loop_over_others_names_the_way() -> None:
    others = [_binding("b", "audit.*", "mirror"), _binding("c", "mirror", "orders.eu"), _binding("d", "x", "y")]
    assert loop_with(_binding("a", "orders.*", "audit.all"), others) == ["a", "b", "c"]


def test_a_chain_that_ends_is_no_loop() -> None:
    others = [_binding("b", "audit", "archive"), _binding("a", "orders", "orders")]
    assert loop_with(_binding("a", "orders", "audit"), others) == []


def test_a_table_answers_by_topic() -> None:
    table = BindingTable([_binding("a", "orders.*", "x"), _binding("b", ">", "y")], version=3)
    assert [row.name for row in table.of("orders.eu")] == ["a", "b"]
    assert [row.name for row in table.of("other")] == ["b"]


def test_a_definition_survives_its_json_and_a_wrong_one_is_refused() -> None:
    binding = _binding("a", "orders.*", "x")
    assert Binding.from_json(binding.to_json()) == binding
    with pytest.raises(FieldError):
        Binding.from_json(binding.to_json() | {"source": "a..b"})
