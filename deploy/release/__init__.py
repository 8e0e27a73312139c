"""The release artefact: wheels, everything they need, a bill of materials and checksums, the same bytes every time."""
