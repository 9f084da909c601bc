"""How fast thousands of gang pods that appear at once are bound: Muster beside its peers and the API server's limit."""
