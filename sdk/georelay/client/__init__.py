"""Asynchronous clients of a georelay mesh that speak its wire formats."""
