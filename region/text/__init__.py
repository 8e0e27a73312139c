"""The text protocol: one command per line over TCP, for a person with telnet and scripts without a client library."""
