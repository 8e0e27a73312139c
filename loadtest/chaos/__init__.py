"""Real brokers under load from foreign clients, one fault after the other, everything recorded and judged."""
