"""Problem documents carry what clients read beside the body."""

from __future__ import annotations

from georelay.errors import Busy, Throttled
from region.api.problem import problem_response


def test_who_is_throttled_is_told_when_to_ask_again() -> None:
    response = problem_response(Throttled("too fast"))
    assert (response.status, response.headers["Retry-After"]) == (429, "10")
    assert "Retry-After" not in problem_response(Busy("full")).headers
