"""Benchmarks that anyone can run: `make bench`. Loopback only; every figure is a median of several runs."""
