"""WAN test bed: regions in network namespaces of this machine, with real delays between them."""
