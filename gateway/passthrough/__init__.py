"""gRPC `broker.Broker`, passed through as bytes."""
