"""Kafka clients and the SDK in consumer groups: members as processes, what they did, and whether it was right."""
