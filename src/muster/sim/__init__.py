"""Simulated nodes, kubelets and rank supervisors that work with any API server."""
