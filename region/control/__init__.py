"""Mesh control: one small Raft group over the WAN that says what the mesh consists of and who is home of what."""
