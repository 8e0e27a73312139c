"""Streams hosted by this broker: the state machine above one Raft group, and the broker's view of its cluster."""
