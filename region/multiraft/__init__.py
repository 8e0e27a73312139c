"""Many Raft groups in one broker process: the host, its peer connections and coalesced heartbeats."""
