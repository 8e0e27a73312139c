"""The stateless edge: sends clients to the nearest ready region and speaks only the wire.

routing/      which region is near and ready, from this gateway's own measurements
rest/         HTTP: resolve, the proxied /v1 paths, status, health, metrics
kafka/        Kafka bootstrap: an honest relay to one broker of the nearest ready region
passthrough/  gRPC `broker.Broker` as bytes
"""
