"""`python -m tests.sim`: see tests/sim/README.md."""

from tests.sim.command import main

if __name__ == "__main__":
    raise SystemExit(main())
