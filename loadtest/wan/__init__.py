"""Meshes in a WAN test bed, where clients land in them and when they move; and one bare TCP connection."""
