"""A Kubernetes API server: a core without I/O (`core.ApiCore`) and an HTTPS server (`server`)."""
