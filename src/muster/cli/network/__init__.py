"""`muster network`: traffic, the uplink's budget, the plan of addresses, checks, leaks, and the node's process."""
