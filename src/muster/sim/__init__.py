"""Simulated parts of a cluster: nodes, kubelets and rank supervisors, against any API server."""
