"""Connections to the API server: kubeconfigs, credentials, TLS and HTTP requests."""
