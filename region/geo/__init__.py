"""Geo acknowledgements: publishes that wait for regions, and what consumers of such topics may see."""
