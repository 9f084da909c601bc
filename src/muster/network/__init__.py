"""The cluster's network: traffic per job, the uplink's budget, the plan of addresses, checks, and CNI."""
