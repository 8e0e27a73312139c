"""Three regions of one contender that are far from each other, in a WAN test bed (docs/development/wan.md).

Each region has one broker. Clients run on the host, to which every region is near and which no cut reaches: a client of
a region's broker is as one in that region.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench import measured
from loadtest.bench.cluster import Cluster
from loadtest.bench.schedule_core import Load
from loadtest.peers.foreign import Foreign
from loadtest.wan.wan_mesh import COMMAND, PAIRS, WanBed, wan

HOME: Final = "us"
MOVED_TO: Final = "eu"
REGIONS: Final = (HOME, "ap", MOVED_TO)
FLOORS_MS: Final = {HOME: 0.0, "ap": 75.0, MOVED_TO: 35.0}  # half of the round trips in PAIRS
PROBES_MAX: Final = 6
NEEDS_ROOT: Final = "regions need root: only then clients on this host reach the brokers of a test bed"


def missing_here() -> str:
    """Return what this machine lacks for a test bed, in one line; empty when it can run one."""
    if os.geteuid():
        return NEEDS_ROOT
    name = f"probe-{os.getpid()}"
    try:
        wan("up", PAIRS, "--name", name, "--detach")
        wan("down", "--name", name)
    except RuntimeError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """What runs in a test bed.

    Args:
        places: by region, the home first.
        made_in: regions in which topics are made by hand; the others get them from the home.
        promote: what an operator does for topics when the home is lost, so that clients go on elsewhere.
    """

    places: Mapping[str, Cluster]
    bed: WanBed
    made_in: Sequence[str] = (HOME,)
    promote: Callable[[Sequence[str]], None] = lambda _: None

    @property
    def protocol(self) -> str:
        """Return which clients speak with it."""
        return self.places[HOME].protocol

    def create(self, topics: Sequence[str]) -> None:
        """Make topics, and wait until records of each come to every region. Raises RuntimeError: they do not."""
        for region in self.made_in:
            self.places[region].create(topics)
        said = "some were lost"
        for _ in range(PROBES_MAX):
            probe = measured.Way(places=self.places, load=Load(topics=list(topics), rate_per_s=20, seconds=2))
            try:
                figures, _ = measured.measure(probe)
            except RuntimeError as error:  # a topic is not there yet
                said = str(error)
                continue
            if not any(each["lost"] + each["unknown"] for each in figures.values()):
                return
        raise RuntimeError(f"records of the home do not come to every region: {said}")


@contextlib.contextmanager
def wan_bed(folder: Path) -> Iterator[tuple[WanBed, Foreign]]:
    """Run a test bed for the block, and what is started in it."""
    name = f"peers-{os.getpid()}"
    with Foreign(folder) as foreign:
        foreign.start("wan", [*COMMAND, "up", PAIRS, "--name", name])
        foreign.until(lambda: "is ready" in (folder / "wan.log").read_text(), "a test bed that is ready")
        yield WanBed(name), foreign
