"""A Kubernetes API server: a pure core (`core.ApiCore`) and an HTTPS face (`server`)."""
