"""Which service account, DaemonSet or other workload costs the control plane what, and how this grows with nodes."""
