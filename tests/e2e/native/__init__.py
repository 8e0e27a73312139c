"""The SDK against a real region; a package, so that the region ends with its last test."""
