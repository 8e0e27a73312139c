"""Foreign clients against a mesh of real processes; a package, so that its meshes end with its last test."""
