"""One broker process seen from inside: its controller group, its hosted streams and its view of the mesh."""
