"""Kafka bootstrap of the gateway."""
