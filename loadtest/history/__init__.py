"""Recorded histories of produce, fetch and list-offsets workloads: written while they run, judged afterwards."""
