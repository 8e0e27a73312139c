"""Synthetic traces with injected faults, and what a report must say about them."""
