"""Homes of streams: which region sequences what, since when, and how that changes. Pure: values and decisions."""
