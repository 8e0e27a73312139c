"""A small certificate authority for one mesh: what `georelay pki` and `georelay up --tls` use."""
