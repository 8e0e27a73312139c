"""All bindings together: which of them take a topic, and that no record can ever come back to where it was. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from region.routing.binding import Binding


class BindingTable:
    """Bindings of one moment; answers are remembered."""

    def __init__(self, bindings: Iterable[Binding] = (), *, version: int = 0) -> None:
        self.version = version
        self._bindings = tuple(bindings)
        self._by_topic: dict[str, tuple[Binding, ...]] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def of(self, topic: str) -> tuple[Binding, ...]:
        """Return the bindings that take records of a topic."""
        if not self._bindings:
            return ()
        found = self._by_topic.get(topic)
        if found is None:
            found = tuple(binding for binding in self._bindings if binding.takes(topic))
            self._by_topic[topic] = found
        return found


def loop_with(binding: Binding, others: Iterable[Binding]) -> list[str]:
    """Return the names of the bindings on a way from a binding's target back to its source; [] when there is none.

    Headers do not count: copies keep them, so what matched once may match again.
    """
    known = [other for other in others if other.name != binding.name]
    ways = [[binding]]
    seen = {binding.name}
    while ways:
        way = ways.pop()
        target = way[-1].target
        if binding.takes(target):
            return [step.name for step in way]
        for other in known:
            if other.name not in seen and other.takes(target):
                seen.add(other.name)
                ways.append([*way, other])
    return []
