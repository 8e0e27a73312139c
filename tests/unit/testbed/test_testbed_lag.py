"""How late the router was."""

from __future__ import annotations

from mesh.testbed.lag_core import SECONDS_KEPT, LagBook

S = 1_000_000_000


def test_the_worst_of_each_second_is_kept() -> None:
    book = LagBook()
    for second, lag_ns in ((1, 5), (1, 9), (1, 7), (2, 3), (4, 1)):
        book.note(second * S, lag_ns)
    assert book.maxima() == [(1, 9), (2, 3), (4, 1)]
    assert (book.worst_ns, book.samples) == (9, 5)


def test_nothing_noted_is_nothing_said() -> None:
    assert LagBook().maxima() == []


def test_old_seconds_are_forgotten_the_worst_is_not() -> None:
    book = LagBook()
    book.note(S, 1_000)
    for second in range(2, SECONDS_KEPT + 10):
        book.note(second * S, 1)
    assert len(book.maxima()) == SECONDS_KEPT + 1
    assert book.maxima()[0][0] > 1
    assert book.worst_ns == 1_000
