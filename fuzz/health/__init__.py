"""Node health in simulated clusters: agents, machines and tests are modelled, what works under the lease is real."""
