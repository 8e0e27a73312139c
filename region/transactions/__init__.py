"""Transactions of this region: who is in one, whether it commits, and that everyone who is in it hears so."""
