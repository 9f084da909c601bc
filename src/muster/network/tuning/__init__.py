"""Sets sizes of kernel tables from the plan of the network, and restores them."""
