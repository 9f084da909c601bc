"""The embedded cluster: a Kubernetes API server, its store and controllers in one process, for a laptop and tests."""
