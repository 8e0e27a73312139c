"""The controller of one region: brokers, topics, replica assignment and producer ids, in one Raft group."""
