"""The embedded cluster: a Kubernetes API server with store and controllers in one process, for laptops and tests."""
