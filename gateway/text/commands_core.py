"""What the text listener of a gateway is asked, and how it answers. Pure.

Rule: a question is that of POST /v1/resolve, and is judged where that one is (gateway.routing.resolving).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.routing.resolving import QUESTION_BYTES_MAX
from georelay.errors import BadRequest
from georelay.fields import FieldError, JsonObject, parse_object
from mesh.listening.line_commands_core import SPACES, Language, Verb


@dataclass(frozen=True, slots=True)
class Resolve:
    """RESOLVE [client | {json}]; `asked` is the question."""

    asked: JsonObject


def _resolve(rest: str) -> Resolve | None:
    if rest.startswith("{"):
        try:
            return Resolve(parse_object(rest.encode(), bytes_max=QUESTION_BYTES_MAX))
        except FieldError as error:
            raise BadRequest(str(error)) from error
    if SPACES.search(rest):
        return None
    return Resolve({"client": rest} if rest else {})


LANGUAGE: Final = Language(
    {"RESOLVE": Verb("RESOLVE [client | {json}]", "show which regions to use; {json} as of POST /v1/resolve", _resolve)}
)


def regions_of(answer: Mapping[str, Any]) -> list[str]:
    """Return one line for each region of an answer, best first."""
    return [
        f"* region {row['region']} {'up' if row['ready'] else 'down'} {_shown(row['estimate_ms'])} ms {row['source']}"
        f"{_addresses('kafka', row['kafka'])}{_addresses('grpc', row['grpc'])}{_addresses('http', row['http'])}"
        for row in answer["regions"]
    ]


def tail_of(answer: Mapping[str, Any]) -> str:
    """Return what follows the OK: where to go, for how long that is good, and why."""
    flags = "".join(f" {name}" for name in ("must_move", "degraded") if answer[name])
    return (
        f"region {answer['region'] or '-'} ttl {answer['ttl_s']} s spread {answer['reconnect_spread_ms']} ms{flags}: "
        f"{answer['reason']}"
    )


def _addresses(name: str, addresses: Sequence[str]) -> str:
    return f" {name} {','.join(addresses)}" if addresses else ""


def _shown(milliseconds: float | None) -> str:
    return "?" if milliseconds is None else f"{milliseconds:.1f}"
