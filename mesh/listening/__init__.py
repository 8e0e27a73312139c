"""Accepting connections: who is let in before a byte of theirs is read, and TLS for those who are."""
