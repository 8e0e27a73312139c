"""Consumer groups with Kafka's classic protocol: membership, rebalances, committed offsets, all replicated."""
