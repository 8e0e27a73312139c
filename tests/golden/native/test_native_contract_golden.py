"""Field numbers of the native contracts never change: `proto_numbers.txt` has every one that was ever given.

A new field is a new line (`--rewrite` writes it); a line that would vanish or change breaks clients in the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from georelay._pb import admin_pb2, carried_pb2, routes_pb2, streams_pb2

GOLDEN = Path(__file__).parent / "proto_numbers.txt"


def numbers(file: Any) -> list[str]:
    """Return one line for every message field, enum value and method of a contract."""
    lines = []
    for message in file.message_types_by_name.values():
        for field in message.fields:
            kind = field.message_type.name if field.message_type else field.enum_type.name if field.enum_type else ""
            shape = "repeated " if field.is_repeated else ""
            lines.append(f"{message.full_name}.{field.name} = {field.number} {shape}{kind or field.type}")
    for enum in file.enum_types_by_name.values():
        lines += [f"{enum.full_name}.{value.name} = {value.number}" for value in enum.values]
    for service in file.services_by_name.values():
        for method in service.methods:
            asked = "stream " if method.client_streaming else ""
            answered = "stream " if method.server_streaming else ""
            lines.append(f"{method.full_name} ({asked}{method.input_type.name}) -> {answered}{method.output_type.name}")
    return lines


def test_every_number_that_was_ever_given_still_means_the_same(request: Any) -> None:
    now = [line for module in (admin_pb2, streams_pb2, carried_pb2, routes_pb2) for line in numbers(module.DESCRIPTOR)]
    if request.config.getoption("--rewrite", default=False):
        GOLDEN.write_text("\n".join(now) + "\n")
    assert now == GOLDEN.read_text().splitlines()
