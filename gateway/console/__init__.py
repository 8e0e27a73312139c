"""The mesh in a browser: one collector per gateway, its overview, pages, and sign-in by session cookie."""
