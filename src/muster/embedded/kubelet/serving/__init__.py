"""The kubelet's server for its API server."""
