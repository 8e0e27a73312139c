"""The scenarios: what has gone wrong elsewhere when clients are sent to the nearest region (docs/adr/0046)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.routes.world import Scenario

FOUR: Mapping[str, tuple[float, float]] = {
    "us": (0.0, 0.0),
    "eu": (75.0, 0.0),
    "ap": (190.0, 40.0),
    "sa": (30.0, -110.0),
}
HALF_HOUR_S = 1800.0


def within(now_s: float, first_s: float, last_s: float) -> bool:
    """Return whether a time is in a span."""
    return first_s <= now_s < last_s


def shifts(now_s: float, client: int, region: str) -> float:
    """Return what routes add that change now and then: some way of each client is 30 to 80 ms longer for two hours."""
    period = int(now_s // 7200)
    draw = (client * 7919 + period * 104729 + sum(map(ord, region)) * 31) % 100
    return 30.0 + draw * 5 if draw < 10 else 0.0


def scenarios(hours: float) -> list[Scenario]:
    """Return them all; times lie within so many hours."""
    middle_s, end_s = hours * 1800, hours * 3600
    lost_s = min(HALF_HOUR_S, end_s / 4)

    def gone(now_s: float, region: str) -> bool:
        return region == "us" and within(now_s, middle_s / 2, middle_s / 2 + lost_s)

    def gray(now_s: float, region: str) -> bool:
        return region == "eu" and within(now_s, middle_s, middle_s + lost_s)

    def step(now_s: float, client: int, region: str) -> float:
        return 30.0 if region == "us" and client % 2 and now_s >= middle_s else 0.0

    def drift(now_s: float, _client: int, region: str) -> float:
        return 60.0 * now_s / end_s if region == "us" else 0.0

    return [
        Scenario(name="quiet", places=FOUR),
        Scenario(name="step of 30 ms", places=FOUR, adds=step),
        Scenario(name="slow drift", places=FOUR, adds=drift),
        # All go to the first one, where there has to be room: who is shed moves, and that is another scenario.
        Scenario(name="equidistant pair", places={"us": (0, 0), "eu": (75, 0)}, border=True, head_room=4.0),
        Scenario(name="spikes 3 %, routes shift", places=FOUR, adds=shifts),
        Scenario(name="region lost and back", places=FOUR, dead=gone, head_room=1.6),
        Scenario(
            name="cut to the others only",
            places=FOUR,
            cut_off=lambda now_s, gateway: gateway == "sa" and within(now_s, middle_s, middle_s + lost_s),
        ),
        Scenario(
            name="gateway cut off, far clients",
            places=FOUR,
            one_gateway="us",
            cut_off=lambda now_s, _: within(now_s, middle_s, middle_s + lost_s),
        ),
        Scenario(name="gray region", places=FOUR, gray=gray),
        Scenario(name="under-sized region", places=FOUR, small={"us": 0.85}, near={"us": 2.0}),
        Scenario(name="stale load", places=FOUR, silent=lambda now_s, r: r == "ap" and now_s >= middle_s),
        Scenario(name="a third lies", places=FOUR, lies=0.33),
        Scenario(name="prefix of mixed clients", places=FOUR, prefix_size=50),
        Scenario(
            name="all of it (the design's table)",
            places=FOUR,
            near={"us": 2.0},
            small={"us": 0.85},
            adds=shifts,
            dead=lambda now_s, r: r == "eu" and within(now_s, middle_s / 2, middle_s / 2 + lost_s),
            gray=lambda now_s, r: r == "ap" and within(now_s, middle_s, middle_s + lost_s),
        ),
    ]
