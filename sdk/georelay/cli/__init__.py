"""The command `georelay`: everything a user does with a mesh, through its gateway."""
