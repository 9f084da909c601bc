"""Plans address ranges for a hub and its spokes without overlap, and checks the ranges of existing clusters."""
