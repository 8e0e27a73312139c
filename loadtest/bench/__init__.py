"""Benchmarks that anyone can run: `make bench`. Loopback only; figures of loads are medians of several runs."""
