"""What brings georelay to hosts: the release artefact and the units that run it. Nothing here is in a wheel."""
