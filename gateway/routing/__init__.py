"""Which region is near and ready."""
