"""Starts a real Kubernetes control plane on this machine, and reads its audit log: for tests, demos and `up --real`."""
