"""Bindings: records of some topics are copied to others before their publish is acknowledged."""
