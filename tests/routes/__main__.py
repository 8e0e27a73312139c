"""`python -m tests.routes`: the scenarios on the shipping cores, one row each (HOURS, CLIENTS, SEED)."""

from __future__ import annotations

import argparse

from tests.routes.scenarios import scenarios
from tests.routes.world import HEADER, World


def main() -> None:
    """Play every scenario and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m tests.routes", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--clients", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    arguments = parser.parse_args()
    print(f"{'scenario':32} {HEADER}")
    for scenario in scenarios(arguments.hours):
        if scenario.name.startswith(arguments.only):
            outcome = World(scenario, clients=arguments.clients, seed=arguments.seed).run(arguments.hours)
            print(f"{scenario.name:32} {outcome.row()}", flush=True)


if __name__ == "__main__":
    main()
