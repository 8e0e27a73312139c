"""What load campaigns do with a mesh: ask it, cut links, let a broker join, tell the phases; and a pool of gossip."""
