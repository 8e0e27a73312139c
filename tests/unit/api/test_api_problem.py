"""Problem documents carry what clients read beside the body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from georelay.errors import BadRequest, Busy, Throttled
from region.api.problem import problem_of, problem_response


def test_who_is_throttled_is_told_when_to_ask_again() -> None:
    response = problem_response(Throttled("too fast"))
    assert (response.status, response.headers["Retry-After"]) == (429, "10")
    assert "Retry-After" not in problem_response(Busy("full")).headers


def test_a_text_that_utf_8_cannot_have_is_told_all_the_same() -> None:
    assert json.loads(problem_of(BadRequest("\ud800: unknown field of größe")))["detail"] == "?: unknown field of größe"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/topics/orders/records"), ("POST", "/v1/topics"), ("PATCH", "/v1/topics/orders")],
)
async def test_a_field_named_by_half_of_a_surrogate_pair_is_a_bad_request(
    http: Any, cluster: Any, method: str, path: str
) -> None:
    cluster.add_topic("orders")
    async with http.request(method, path, data=b'{"\\ud800":1}') as answer:
        document = await answer.json()
    assert (answer.status, document["code"]) == (400, "BAD_REQUEST")
    assert "?" in document["detail"]
