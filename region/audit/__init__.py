"""Audit: whether the regions of a mesh hold the same records, by their digest chains."""
