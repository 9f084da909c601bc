"""The embedded cluster: a Kubernetes API server, its store and its controllers in one process, for a laptop and tests."""
