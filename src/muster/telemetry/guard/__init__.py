"""The guard: a proxy in front of a Prometheus-compatible API that prices each request before it sends it."""
