"""The uplink's budget in virtual time: a fleet of nodes, a leader that dies, and a network that delays and breaks."""
