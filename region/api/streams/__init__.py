"""The native API `georelay.v1.Streams` of one broker (proto/georelay/v1/streams.proto)."""
