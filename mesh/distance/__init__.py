"""How far clients are, and how busy regions: what brokers and gateways both speak of."""
