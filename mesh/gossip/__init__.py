"""Gossip: Serf's wire, spoken natively. It tells addresses, liveness and round trips; it never decides ownership."""
