"""The uplink's budget: measured demand, fair rates for each pod, and the connections between agents and the hub."""
