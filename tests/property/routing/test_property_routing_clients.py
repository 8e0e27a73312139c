"""Whatever others say, a client is answered by what the kernel measured and what it said itself."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.client_book_core import ClientBook, ClientKey, Observation

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.routes.crowd import HONEST, REGIONS, answers, hostile, told_by

CLAIMS = st.builds(
    Observation,
    region=st.sampled_from([*REGIONS, "mars", ""]),
    rtt_ms=st.floats(allow_nan=True, allow_infinity=True),
    samples=st.integers(-1, 1 << 40),
    age_s=st.floats(allow_nan=True, allow_infinity=True),
)
NAMES = st.sampled_from(["honest-1", "honest-2", "liar", ""])
ADDRESSES = st.builds("10.{}.0.{}".format, st.integers(0, HONEST), st.integers(10, 255)) | st.text(max_size=8)


@given(st.lists(st.tuples(NAMES, ADDRESSES, st.lists(CLAIMS, max_size=6)), max_size=30))
def test_what_others_claim_changes_no_answer(claims: list[tuple[str, str, list[Observation]]]) -> None:
    book = ClientBook()
    told_by(book, now_s=0.0)
    before = answers(book, now_s=1.0)
    for name, address, observations in claims:
        book.told(ClientKey(name, address), observations, 1.0)
    assert answers(book, now_s=1.0) == before


def test_a_crowd_of_liars_changes_no_answer() -> None:
    same, _ = hostile(20_000, seed=1, clients_max=150)  # make crowd: ten million, 100,000
    assert same
