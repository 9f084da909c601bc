"""The node's side of the uplink budget: limits per pod, measured demand, and what holds while the hub is away."""
