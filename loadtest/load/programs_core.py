"""What came of programs beside the load: whole transactions, pipelines that lose nothing. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from loadtest.history.operation import Kind, Operation
from loadtest.load.engine_values import PROGRAM


def torn(operations: Sequence[Operation]) -> tuple[int, int, list[str]]:
    """Return (transactions that were begun, those that are there, those that are there in part in some region).

    Records of one transaction of a program have one name, in partitions of several topics.
    """
    places: dict[str, set[str]] = defaultdict(set)
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # region -> name -> partitions
    for operation in operations:
        if operation.kind is Kind.PRODUCE and operation.process.startswith(PROGRAM):
            places[operation.value or ""].add(operation.key)
        elif operation.kind is Kind.FETCH and operation.final:
            for _, value in operation.records:
                found[operation.site][value].add(operation.key)
    there = {name for of_region in found.values() for name in of_region if name in places}
    in_part = {
        f"{name} in {region}"
        for region, of_region in found.items()
        for name, keys in of_region.items()
        if name in places and keys != places[name]
    }
    return len(places), len(there), sorted(in_part)


def piped(inputs: Iterable[str], outputs: Iterable[str]) -> dict[str, int]:
    """Return how many came out of a pipeline that lets each input out once, and what is wrong with them."""
    wanted, counts = set(inputs), Counter(outputs)
    return {
        "inputs": len(wanted),
        "missing": len(wanted - counts.keys()),
        "repeated": counts.total() - len(counts),
        "foreign": len(counts.keys() - wanted),
    }


class Leg(NamedTuple):
    """What a reader got between a start and its end, in that order, and the position that it saved last."""

    saved: int
    offsets: Sequence[int]


def moved(legs: Sequence[Leg], end: int) -> dict[str, int]:
    """Return what a reader that goes on elsewhere got of the records below `end`, missed, and got again.

    In flight: what it had in hands when it moved, and had not saved its position behind.
    """
    got = Counter(offset for leg in legs for offset in leg.offsets)
    return {
        "records": len(got),
        "missing": sum(offset not in got for offset in range(end)),
        "again": got.total() - len(got),
        "in flight": sum(offset >= leg.saved for leg in legs[:-1] for offset in leg.offsets),
    }
