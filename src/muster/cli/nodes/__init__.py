"""`muster nodes`: shows the states of nodes and their reasons, and sends requests about nodes."""
