"""`georelay up`: a whole mesh on this machine's loopback, for development, tests and the demo."""
