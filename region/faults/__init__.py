"""A test tool: the shipping broker on a clock and a disk that can be broken while it runs. Never for real data."""
