"""One file per family of Kafka APIs; `region.kafka.dispatch` is the table over them."""
