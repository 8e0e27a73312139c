"""Drills: a region, a link or a broker is lost on purpose, and what the mesh promised is counted."""
