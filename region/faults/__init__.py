"""A test tool: the shipping broker, its clock, disk and main loop broken while it runs. Never for real data."""
