"""HTTP of the gateway."""
