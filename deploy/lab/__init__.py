"""Hosts with systemd on this machine, and what an operator does to them with deploy/ansible."""
