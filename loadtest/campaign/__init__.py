"""Campaigns of faults under load: a foreign producer, kill -9 or a cut link, and a count of what is left."""
